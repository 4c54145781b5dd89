"""HTTP errors for Kafka's error codes, with advice."""

from __future__ import annotations

from bmq.console.operations import NotPossible
from bmq.core.errors import ErrorCode, RequestError

_SEE = ""
"""No advice: the message is enough."""
_LIST_TOPICS = "`bmq topic list` shows what there is"
_DENIED = "the user is not authorised: an ACL has to allow it"
_BY_CODE = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, _DENIED),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, _DENIED),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, _DENIED),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (403, _DENIED),
    ErrorCode.BROKER_ID_NOT_REGISTERED: (404, "`bmq cluster status` shows the members"),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, _LIST_TOPICS),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, _LIST_TOPICS),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, "`bmq group list` shows what there is"),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (409, "name a member with the broker's role that is not draining"),
    ErrorCode.TOPIC_ALREADY_EXISTS: (409, "choose another name, or delete it first"),
    ErrorCode.NON_EMPTY_GROUP: (409, "stop its consumers first"),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, "the group has members: stop its consumers first"),
    ErrorCode.OPERATION_NOT_ATTEMPTED: (409, _SEE),
    ErrorCode.TOPIC_DELETION_DISABLED: (409, "set delete.topic.enable to true to allow it"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, _SEE),
    ErrorCode.INVALID_PARTITIONS: (400, _SEE),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, _SEE),
    ErrorCode.INVALID_CONFIG: (400, _SEE),
    ErrorCode.INVALID_REQUEST: (400, _SEE),
    ErrorCode.INVALID_RECORD: (400, _SEE),
    ErrorCode.INVALID_TIMESTAMP: (400, _SEE),
    ErrorCode.INVALID_GROUP_ID: (400, _SEE),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (400, "write it in RE2's syntax; it has to match the whole name"),
    ErrorCode.MESSAGE_TOO_LARGE: (400, "max.message.bytes of the topic bounds it"),
    ErrorCode.POLICY_VIOLATION: (400, _SEE),
    ErrorCode.OFFSET_OUT_OF_RANGE: (400, "ask for an offset from log_start to high_watermark"),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (503, "try again"),
    ErrorCode.BROKER_NOT_AVAILABLE: (503, "try again; if its process hangs, end it with a signal"),
    ErrorCode.NOT_CONTROLLER: (503, "the leader is changing, try again"),
    ErrorCode.REQUEST_TIMED_OUT: (503, "check with `bmq cluster status`, then try again"),
    ErrorCode.UNSUPPORTED_VERSION: (501, "finish the upgrade first"),
}
_ADVICE = "the log of the leader may say more"


def refusal(error: RequestError) -> NotPossible:
    """Return the HTTP error for ``error``: its status, code and text, with advice."""
    status, advice = _BY_CODE.get(error.code, (503 if error.code.is_retriable else 500, _ADVICE))
    texts = [text for text in (error.message.rstrip("."), advice) if text]
    return NotPossible(status, error.code.name.lower(), "; ".join(texts) or error.code.name)
