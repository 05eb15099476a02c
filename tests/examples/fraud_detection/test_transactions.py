"""Made-up payments: the same from the same seed, and each fraud can be seen by the analyser it is for."""

from collections import Counter, defaultdict

from fraud.transactions import BLACKLIST, make_transactions

PAYMENTS = list(make_transactions(count=20_000, seed=3))


def test_a_seed_makes_the_same_payments() -> None:
    assert list(make_transactions(count=100, seed=3)) == PAYMENTS[:100]
    assert list(make_transactions(count=100, seed=4)) != PAYMENTS[:100]


def test_ids_are_unique_and_times_in_order() -> None:
    assert len({payment["id"] for payment in PAYMENTS}) == len(PAYMENTS)
    assert [payment["at"] for payment in PAYMENTS] == sorted(payment["at"] for payment in PAYMENTS)


def test_frauds_of_every_kind_are_planted_and_few() -> None:
    kinds = Counter(payment["fraud"] for payment in PAYMENTS)
    assert {*kinds} == {None, "amount", "velocity", "place", "blacklist"}
    assert all(kinds[kind] >= 10 for kind in kinds)
    assert kinds[None] > 0.95 * len(PAYMENTS)


def test_only_frauds_are_foreign_at_listed_merchants_or_far_above_the_usual_amount() -> None:
    assert all((payment["country"] != payment["home"]) == (payment["fraud"] == "place") for payment in PAYMENTS)
    assert all((payment["merchant"] in BLACKLIST) == (payment["fraud"] == "blacklist") for payment in PAYMENTS)
    usual = defaultdict(list)
    for payment in PAYMENTS:
        if payment["fraud"] != "amount":
            usual[payment["card"]].append(payment["amount"])
    for payment in PAYMENTS:
        if payment["fraud"] == "amount":
            mine = usual[payment["card"]]
            assert payment["amount"] > 8 * sum(mine) / len(mine)


def test_a_card_in_a_hurry_pays_several_times_in_a_row() -> None:
    for number, payment in enumerate(PAYMENTS):
        if payment["fraud"] == "velocity" and PAYMENTS[number - 1]["fraud"] != "velocity":
            following = PAYMENTS[number : number + 6]
            assert {one["card"] for one in following} == {payment["card"]} or len(following) < 6
