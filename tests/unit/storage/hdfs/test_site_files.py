"""Hadoop's configuration files, read as Hadoop reads them; and what must not be read is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError, conf_folder, read_folder

Write = Callable[..., Path]
XI = 'xmlns:xi="http://www.w3.org/2001/XInclude"'


def prop(name: str, value: str, *, is_final: bool = False) -> str:
    final = "<final>true</final>" if is_final else ""
    return f"<property><name>{name}</name><value>{value}</value>{final}</property>"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write configuration files into a folder, and return it."""

    def write(**files: str) -> Path:
        for name, body in files.items():
            path = tmp_path / f"{name.replace('_', '-')}.xml"
            path.write_text(f'<?xml version="1.0"?>\n<configuration {XI}>{body}</configuration>')
        return tmp_path

    return write


def test_the_later_file_wins_except_over_a_final_value(write: Write) -> None:
    folder = write(
        core_site=prop("a", "core") + prop("b", "core", is_final=True) + prop("c", "core"),
        hdfs_site=prop("a", "hdfs") + prop("b", "hdfs") + prop("d", "hdfs"),
    )
    config = read_folder(folder)
    assert {name: config.get(name) for name in "abcde"} == {"a": "hdfs", "b": "core", "c": "core", "d": "hdfs", "e": ""}


def test_a_final_value_holds_within_its_file_and_the_files_that_include_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "security.xml").write_text(f"<configuration>{prop('a', 'kerberos', is_final=True)}</configuration>")
    write(
        core_site='<xi:include href="security.xml"/>'
        + prop("a", "simple")
        + prop("b", "1", is_final=True)
        + prop("b", "2")
        + prop("c", "1")
        + prop("c", "2", is_final=True)
        + "<property><name>d</name><final>true</final></property>"
        + prop("d", "1")
    )
    config = read_folder(tmp_path)
    assert [config.get(name) for name in "abcd"] == ["kerberos", "1", "2", ""]


def test_forms_of_a_property(write: Write) -> None:
    """Attributes (Hadoop 3), spaces, comments, CDATA, sources, and what is no property."""
    body = """
      <!-- <property><name>commented</name><value>x</value></property> -->
      <property name="attributes" value="1" final="true"/>
      <property>
        <name> spaced </name>
        <value>
          a b
        </value>
        <description>a text &amp; <b>more</b></description><source>here</source>
      </property>
      <property><name>cdata</name><value><![CDATA[a<b]]></value></property>
      <property><name>without a value</name></property>
      <property><name>empty</name><value/></property>
      <name>stray</name><value>stray</value>
    """
    config = read_folder(write(core_site=body))
    assert (config.get("attributes"), config.get("spaced"), config.get("cdata")) == ("1", "a b", "a<b")
    assert [name in config for name in ("empty", "without a value", "commented", "stray")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("${host}:8020", "nn:8020"),
        ("${outer}", "nn-in"),
        ("${env.HOST}", "envhost"),
        ("${env.NONE:-other}", "other"),
        ("${env.EMPTY:-other}", "other"),
        ("${env.EMPTY-other}", ""),
        ("${env.NONE-}", ""),
        ("/user/${user.name}/x", "/user/hdfs/x"),
        ("${missing}", "${missing}"),
        ("${missing}/${host}", "${missing}/nn"),
        ("$host ${} ${a b}", "$host ${} ${a b}"),
    ],
)
def test_variables(value: str, expanded: str) -> None:
    environment = {"HOST": "envhost", "EMPTY": "", "HADOOP_USER_NAME": "hdfs"}
    config = SiteConfig({"v": value, "host": "nn", "inner": "${host}-in", "outer": "${inner}"}, "x", environment)
    assert config.get("v") == expanded


@pytest.mark.parametrize("raw", [{"a": "${a}"}, {"a": "${b}", "b": "${a}"}, {"a": "${b}${b}", "b": "x${b}"}])
def test_a_value_that_refers_to_itself_ends(raw: dict[str, str]) -> None:
    with pytest.raises(SiteFileError, match="a refers to itself"):
        SiteConfig(raw, "x").get("a")


def test_lists_and_truth() -> None:
    config = SiteConfig({"l": " a, b ,,c", "t": "True", "f": "false", "w": "yes"}, "conf")
    assert (config.list("l"), config.list("none")) == (["a", "b", "c"], [])
    assert (config.is_true("t"), config.is_true("f"), config.is_true("none")) == (True, False, False)
    with pytest.raises(SiteFileError, match="conf: w='yes' is neither true nor false"):
        config.is_true("w")


# ----------------------------------------------------------------------------------------------------------- includes


def test_includes_stand_in_their_place(write: Write, tmp_path: Path) -> None:
    """A property that follows an include wins over it, and a file may include another one, from its own folder."""
    (tmp_path / "more").mkdir()
    write(core_site=prop("a", "1") + '<xi:include href="more/one.xml"/>' + prop("c", "3"))
    (tmp_path / "more" / "one.xml").write_text(
        f'<configuration {XI}><xi:include href="two.xml" parse="xml"/>{prop("a", "one")}{prop("c", "one")}'
        "</configuration>"
    )
    (tmp_path / "more" / "two.xml").write_text(f"<configuration>{prop('b', 'two')}</configuration>")
    config = read_folder(tmp_path)
    assert [config.get(name) for name in "abc"] == ["one", "two", "3"]


def test_a_fallback_is_for_a_file_that_is_not_there(write: Write, tmp_path: Path) -> None:
    (tmp_path / "there.xml").write_text(f"<configuration>{prop('a', 'there')}</configuration>")
    folder = write(
        core_site=f'<xi:include href="there.xml"><xi:fallback>{prop("a", "fallback")}</xi:fallback></xi:include>'
        f'<xi:include href="gone.xml"><xi:fallback>{prop("b", "fallback")}</xi:fallback></xi:include>'
        '<xi:include href="gone.xml"><xi:fallback/></xi:include>'
    )
    config = read_folder(folder)
    assert (config.get("a"), config.get("b")) == ("there", "fallback")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<xi:include href="gone.xml"/>', "gone.xml, which is not there"),
        ('<xi:include href="core-site.xml"/>', "more than 10 files include one another"),
        ('<xi:include href="http://h/x.xml"/>', "names a file by href, not 'http://h/x.xml'"),
        ('<xi:include href="x.txt" parse="text"/>', "names a file by href"),
        ("<xi:include/>", "names a file by href"),
        ("<property>", "core-site.xml is not XML"),
    ],
)
def test_what_cannot_be_read_is_named(body: str, said: str, write: Write) -> None:
    with pytest.raises(SiteFileError) as refused:
        read_folder(write(core_site=body))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE c [<!ENTITY a "b">]>',
        '<!DOCTYPE c [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE c SYSTEM "http://h/c.dtd">',
    ],
)
def test_entities_are_refused(head: str, tmp_path: Path) -> None:
    """A file of another's making must not read files, ask hosts or grow without end."""
    (tmp_path / "core-site.xml").write_text(f"{head}<configuration>{prop('a', '1')}</configuration>")
    with pytest.raises(SiteFileError, match="remove the DOCTYPE"):
        read_folder(tmp_path)


def test_a_folder_that_is_none_and_one_without_files(tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match="is not a folder"):
        read_folder(tmp_path / "none")
    (tmp_path / "log4j.properties").write_text("")
    with pytest.raises(SiteFileError, match=r"has neither core-site\.xml nor hdfs-site\.xml: "):
        read_folder(tmp_path)
    (tmp_path / "hdfs-site.xml").write_text("<configuration/>")
    assert "fs.defaultFS" not in read_folder(tmp_path)


def test_a_link_to_a_file_that_is_not_there_is_no_missing_file(write: Write, tmp_path: Path) -> None:
    folder = write(hdfs_site=prop("a", "1"))
    (folder / "core-site.xml").symlink_to(tmp_path / "unmounted.xml")
    with pytest.raises(SiteFileError, match=r"core-site\.xml is a link to .*unmounted\.xml, which cannot be found: "):
        read_folder(folder)


def test_where_the_files_are(tmp_path: Path) -> None:
    """Named by the setting, else HADOOP_CONF_DIR, else the folder of an installed Hadoop if it has site files."""
    home = {"HADOOP_HOME": str(tmp_path)}
    assert conf_folder("", {}) is None
    assert conf_folder("", home) is None
    (tmp_path / "etc" / "hadoop").mkdir(parents=True)
    assert conf_folder("", home) is None
    (tmp_path / "etc" / "hadoop" / "core-site.xml").symlink_to("unmounted.xml")
    assert conf_folder("", home) == tmp_path / "etc" / "hadoop"
    assert conf_folder("", {**home, "HADOOP_CONF_DIR": "/c"}) == Path("/c")
    assert conf_folder("/n", {**home, "HADOOP_CONF_DIR": "/c"}) == Path("/n")
