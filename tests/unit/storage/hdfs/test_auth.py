"""The user of simple authentication."""

import pytest

from bmq.storage.filesystem import StorageError
from bmq.storage.hdfs.auth import AUTH_SIMPLE, SimpleAuthenticator


def test_the_user_is_the_given_one_else_that_of_the_environment_else_the_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "spark")
    assert SimpleAuthenticator.for_user().user == "spark"
    assert SimpleAuthenticator.for_user("bmq").user == "bmq"
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert SimpleAuthenticator.for_user().user
    assert SimpleAuthenticator.for_user().auth_byte == AUTH_SIMPLE


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 65532"), OSError("No username set")])
def test_a_user_id_without_a_name_is_an_error_that_names_the_variable_to_set(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run under a user id without a name, as in a container; each error is what some version of Python raises."""

    def getuser() -> str:
        raise error

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr("getpass.getuser", getuser)
    with pytest.raises(StorageError, match="has no name here: set HADOOP_USER_NAME"):
        SimpleAuthenticator.for_user()
