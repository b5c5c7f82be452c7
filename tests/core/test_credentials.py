"""Addresses with credentials are refused, and error texts do not repeat them."""

import pytest

from nl_lightning.core.credentials import check_no_credentials, hide_credentials
from nl_lightning.core.errors import InputError

SECRET = "Wx9Zq"
HOLD = [
    f"s3://AKIA:{SECRET}@bucket/log",
    f"s3://AKIA:{SECRET}/ab@bucket/log",
    f"s3://AKIA:12/{SECRET}@bucket/log",
    f"s3://AKIA:{SECRET}@x/y@bucket/log",
    f"s3://AKIA:a?b{SECRET}@bucket",
    f"s3://AKIA:{SECRET} with a space@bucket",
    f"s3://{SECRET}@bucket",
    f"s3:/AKIA:{SECRET}@bucket",
    f"S3:///AKIA:{SECRET}@bucket",
    f"fsspec+s3://AKIA:{SECRET}@bucket",
    f"gs://me:{SECRET}@bucket",
    f"https://{SECRET}@host/log",
    f"abfs://container:{SECRET}@account.dfs.core.windows.net/log",
    f"abfs://container%3A{SECRET}@account/log",
    f"abfss://:{SECRET}@account/log",
    f"hdfs://me:{SECRET}@host:8020/a@b",
    f"gs://bucket/log?access_token={SECRET}",
    f"s3://bucket/log?region=a&SecretKey={SECRET}",
    f"abfs://container@account/log?sig={SECRET}",
    f"abfs://container@account/log?account_key={SECRET}&x=1",
    f"s3://bucket/log#password={SECRET}",
    f"s3://bucket?endpoint_override=https://me:{SECRET}@host",
    f"s3://bucket/log?endpoint_override=me:{SECRET}@host",
]
CLEAN = [
    "s3://bucket/log",
    "s3://bucket/a@b",
    "s3://bucket/log?region=us-east-1&endpoint_override=localhost:9000",
    "gs://anonymous@bucket/log",
    "abfs://container@account.dfs.core.windows.net/log",
    "abfs://container@account/a@b",
    "hdfs://host:8020/a@b",
    "hdfs://me@host:8020/a@b",
    "file:///data/a@b",
    "data/a:b@c",
]


@pytest.mark.parametrize("place", HOLD)
def test_credentials_are_refused_and_hidden(place: str) -> None:
    config = {"data": {"environment": [{"log": place}]}}
    with pytest.raises(InputError, match=r"^The config, data.environment.log, holds credentials") as error:
        check_no_credentials(config, "The config")
    assert SECRET not in str(error.value)
    assert "in the environment" in str(error.value)
    with pytest.raises(InputError) as error:
        check_no_credentials({place: 1}, "The config")
    assert SECRET not in str(error.value)
    shown = hide_credentials(f"first line\nGiven value: {place!r} is wrong")
    assert SECRET not in shown
    assert "***" in shown
    assert shown.startswith("first line\nGiven value: ")


@pytest.mark.parametrize("place", CLEAN)
def test_other_addresses_stay(place: str) -> None:
    check_no_credentials({"log": place, "rows": 3, "none": None}, "The config")
    assert hide_credentials(f"{place} does not exist") == f"{place} does not exist"


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("s3://a:b@c", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gcs://a:b@c", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfss://a:b@c", "AZURE_CLIENT_SECRET"),
    ],
)
def test_the_environment_variables_are_named(place: str, names: str) -> None:
    with pytest.raises(InputError, match=names):
        check_no_credentials(place, "It")
