"""Messages of the delegation token APIs (KIP-48), which kafka-python has no classes for: made from ``schemas``."""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

from bmq.core.wire import schemas


class CreateDelegationTokenRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Request for a new token."""


class CreateDelegationTokenResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with the token, and its HMAC: the password."""


class RenewDelegationTokenRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Request for a later expiry of a token."""


class RenewDelegationTokenResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with the new expiry."""


class ExpireDelegationTokenRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Request for an earlier expiry of a token, or its end."""


class ExpireDelegationTokenResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with the new expiry."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Request for the tokens of some owners, or of all."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with tokens and their HMACs."""
