"""A hook of a job: it gives the secrets of the users of `support.secured`."""


def alice(login: str) -> str:
    from support.secured import ALICES_PASSWORD

    assert login.startswith("kafka://127.0.0.1:")
    assert login.endswith("/sasl.password")
    print("what a hook prints is not its answer")
    return ALICES_PASSWORD


def bob(login: str) -> str:
    from support.secured import BOBS_PASSWORD

    return BOBS_PASSWORD.replace('\\"', '"').replace("\\\\", "\\")
