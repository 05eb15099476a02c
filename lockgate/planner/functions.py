"""Which built-in functions of Spark give the same result when an epoch is repeated: every one of them, by its name.

A repeated epoch has the same rows, but in another order, at another time and on another machine. Spark keeps one time
of its clock with each epoch: `current_timestamp()`, `current_date()`, `localtimestamp()` and `unix_timestamp()` give it
again, so they are steady.

`sum` and `avg` of fractions, deviations and correlations are steady except for their last digits. Fractions are rounded
each time they are added, and the order of additions may differ. No event is lost or counted twice by that. If you need
the same digits, add DECIMAL.

Tests compare these lists with the functions of the installed Spark: put a new function into one of them. Further below
are those that look at several rows.
"""

from __future__ import annotations

_CHANGING = {
    "gives another value each time": """
        aes_encrypt rand randn random randstr shuffle uniform uuid
    """,
    "asks for the time, which Spark does not keep with the epoch": """
        current_time localtime now
    """,
    "says where a row lies, and a repeated epoch may put it elsewhere": """
        input_file_block_length input_file_block_start input_file_name monotonically_increasing_id
        spark_partition_id
    """,
    "asks for what another start of the job may have differently": """
        current_catalog current_database current_path current_schema current_user python_worker_logs session_user
        user version
    """,
    "runs code that the planner cannot read": """
        java_method reflect try_reflect
    """,
    "depends on the order of rows, and a repeated epoch has them in another order": """
        any_value approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine array_agg collect_list
        collect_set collect_union counter_diff first first_value histogram_numeric hll_sketch_agg hll_union_agg
        kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
        kll_sketch_agg_float lag last last_value lead listagg max_by measure min_by mode nth_value ntile
        percentile_approx row_number schema_of_variant_agg string_agg theta_intersection_agg theta_sketch_agg
        theta_union_agg tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double
        tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer
    """,
}

CHANGING = {name: why for why, names in _CHANGING.items() for name in names.split()}
"""Functions that may give another result, and why."""

_STEADY = """
    abs acos acosh add_months aes_decrypt aggregate and any approx_count_distinct approx_top_k_estimate array
    array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh avg base64 between bigint bin binary
    bit_and bit_count bit_get bit_length bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality case cast cbrt
    ceil ceiling char char_length character_length chr coalesce collate collation collations concat concat_ws
    contains conv convert_timezone corr cos cosh cot count count_if count_min_sketch covar_pop covar_samp crc32 csc
    cume_dist curdate current_date current_timestamp current_timezone date date_add date_diff date_format
    date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
    dayofyear decimal decode degrees dense_rank div double e element_at elt encode endswith equal_null every exists
    exp explode explode_outer expm1 extract factorial filter find_in_set flatten float floor forall format_number
    format_string from_avro from_base32 from_csv from_json from_protobuf from_unixtime from_utc_timestamp from_xml
    get get_json_object getbit greatest grouping grouping_id hash hex hll_sketch_estimate hll_union hmac hour hypot
    if ifnull ilike in initcap inline inline_outer instr int is_valid_utf8 is_valid_variant is_variant_null isnan
    isnotnull isnull jaro_winkler_similarity json_array_length json_object_keys json_tuple kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float kurtosis last_day lcase least left len length levenshtein
    like ln localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval
    make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval
    map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values
    map_zip_with mask max md5 mean median min minute mod month monthname months_between named_struct nanvl negative
    next_day not nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url percent_rank percentile
    percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow power printf quarter
    quote radians raise_error range rank reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
    regr_sxx regr_sxy regr_syy repeat replace reverse right rint rlike round rpad rtrim schema_of_avro schema_of_csv
    schema_of_json schema_of_variant schema_of_xml sec second sentences sequence session_window sha sha1 sha2
    shiftleft shiftright shiftrightunsigned sign signum sin sinh size skewness slice smallint some sort_array
    soundex space split split_part sql_keywords sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
    stack startswith std stddev stddev_pop stddev_samp str_to_map string struct substr substring substring_index sum
    tan tanh theta_difference theta_intersection theta_sketch_estimate theta_union time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc
    timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds tinyint to_avro to_base32
    to_binary to_char to_csv to_date to_json to_number to_protobuf to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys
    transform_values translate trim trunc try_add try_aes_decrypt try_avg try_divide try_element_at
    try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply
    try_parse_json try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time
    try_to_timestamp try_url_decode try_validate_utf8 try_variant_array_append try_variant_get try_variant_insert
    try_variant_set tuple_difference_double tuple_difference_integer tuple_difference_theta_double
    tuple_difference_theta_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer tuple_sketch_estimate_double
    tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos unix_seconds
    unix_timestamp upper url_decode url_encode validate_utf8 var_pop var_samp variance variant_array_append
    variant_delete variant_explode variant_explode_outer variant_get variant_insert variant_set variant_strip_nulls
    vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize
    vector_sum weekday weekofyear when width_bucket window window_time xpath xpath_boolean xpath_double xpath_float
    xpath_int xpath_long xpath_number xpath_short xpath_string xxhash64 year zeroifnull zip_with
"""

STEADY = frozenset(_STEADY.split())
"""Functions that give the same result for the same rows."""

_AGGREGATES = """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list
    collect_set collect_union corr count count_if count_min_sketch covar_pop covar_samp every first first_value grouping
    grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean measure median min min_by mode percentile percentile_approx percentile_cont percentile_disc
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev
    stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance
"""

AGGREGATES = frozenset(_AGGREGATES.split())
"""Functions that make one value of many rows."""

_WINDOWING = """
    counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
"""

WINDOWING = frozenset(_WINDOWING.split())
"""Functions that compare a row with others."""
