"""Numbers, texts and bytes as Hadoop's Writables, by bytes that Hadoop 3.5.0 has written."""

import pytest

from bmq.storage.hdfs.writables import Malformed, WritableReader

NUMBERS = {  # WritableUtils.writeVLong
    0: "00",
    1: "01",
    -1: "ff",
    127: "7f",
    128: "8f80",
    -112: "90",
    -113: "8770",
    -128: "877f",
    255: "8fff",
    256: "8e0100",
    -256: "87ff",
    -257: "860100",
    65535: "8effff",
    1 << 31: "8c80000000",
    (1 << 63) - 1: "887fffffffffffffff",
    -(1 << 63): "807fffffffffffffff",
}


@pytest.mark.parametrize(("number", "written"), NUMBERS.items())
def test_numbers_are_what_hadoop_has_written(number: int, written: str) -> None:
    reader = WritableReader(bytes.fromhex(written))
    assert reader.number() == number
    reader.require_end()


def test_a_number_of_more_than_32_bits_is_no_vint() -> None:
    with pytest.raises(Malformed, match="a number of more than 32 bits, before byte 5"):
        WritableReader(bytes.fromhex("8c80000000")).int32()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it ends within a field: 1 bytes are wanted at byte 0, 0 are there"),
        (b"\x8c\x80", "4 bytes are wanted at byte 1, 1 are there"),
        (b"\x05abc", "5 bytes are wanted at byte 1, 3 are there"),
        (b"\xff", "a field of -1 bytes, at most 10 are taken"),
        (b"\x0b" + bytes(11), "a field of 11 bytes, at most 10 are taken"),
        (b"\x02\xc3\x28", "a text that is not UTF-8"),
    ],
)
def test_what_is_no_text_is_an_error_with_its_place(data: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        WritableReader(data).text(10)


def test_bytes_behind_the_end_are_an_error() -> None:
    reader = WritableReader(b"\x01ab")
    assert reader.data(10) == b"a"
    with pytest.raises(Malformed, match="1 bytes behind the end, before byte 2"):
        reader.require_end()
