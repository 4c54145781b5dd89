"""Encryption zones and erasure coding, as HDFS shows them of a folder or a file.

==============  ======================================  ======================================================
form            a folder                                a file
==============  ======================================  ======================================================
zone            refused as a root                       neither read nor written: its bytes are encrypted
erasure coding  allowed: what is created there is       written by others only; read through hdfs-native
                replicated (SHOULD_REPLICATE)           (``erasure_coded``)
==============  ======================================  ======================================================
"""

from __future__ import annotations

from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs import messages_pb2 as pb

REPLICATION = 0
"""The number of the policy that ``hdfs ec -setPolicy -replicate`` sets."""
# SystemErasureCodingPolicies: of these the NameNode sends numbers alone.
_POLICIES = {1: "RS-6-3-1024k", 2: "RS-3-2-1024k", 3: "RS-LEGACY-6-3-1024k", 4: "XOR-2-1-1024k", 5: "RS-10-4-1024k"}
_IN_ZONE = 0x02  # HdfsFileStatusProto.Flags.HAS_CRYPT

ZONE_ADVICE = (
    "HDFS's clients encrypt the files of a zone by keys of a KMS, and this client does not. Choose a root outside of"
    " the zone; or protect records without a zone, by dfs.encrypt.data.transfer=true on the network and encrypted"
    " disks under the datanodes"
)
"""The reason why a zone is refused, and the two ways on."""


def policy_name(found: pb.FileInfo | pb.LocatedBlocks) -> str:
    """Return the name of the erasure-coding policy of a folder or file; empty if it is replicated."""
    if not found.HasField("erasure_coding") or found.erasure_coding.id == REPLICATION:
        return ""
    policy = found.erasure_coding
    return policy.name or _POLICIES.get(policy.id, f"number {policy.id}")


def needs_own_login(where: str, policy: str) -> str:
    """Return why the erasure-coded file ``where`` is refused to a reader that has a delegation token alone."""
    return (
        f"{where} is erasure-coded by {policy}, and this reader has a delegation token alone: such files are read"
        " through hdfs-native, by a keytab or a ticket. Replicate the file, while no process serves its topic: hdfs dfs"
        " -cp -p into a folder with hdfs ec -setPolicy -replicate, then hdfs dfs -mv back"
    )


def zone_refusal(path: str, found: pb.FileInfo | pb.LocatedBlocks) -> str:
    """Return why ``path`` is refused: it is in an encryption zone; empty if it is in none."""
    if found.HasField("encryption"):
        return f"{path} is encrypted by the key {found.encryption.key_name}: {ZONE_ADVICE}"
    if isinstance(found, pb.FileInfo) and found.flags & _IN_ZONE:
        return f"{path} is in an encryption zone: {ZONE_ADVICE}"
    return ""


def refuse_zone(path: str, found: pb.FileInfo | pb.LocatedBlocks) -> None:
    """Raise Unsupported if ``path`` is in an encryption zone."""
    if why := zone_refusal(path, found):
        raise Unsupported(why)
