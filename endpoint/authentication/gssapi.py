"""GSSAPI of one listener, made from its settings; a setting that is wrong ends the start.

``sasl.jaas.config`` names the keytab and the service's principal, as in Kafka::

    com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true
        keyTab="/etc/bmq/kafka.keytab" principal="kafka/host.example.com@EXAMPLE.COM";

The realm's KDCs, the default realm and all else are in the machine's krb5.conf.  A keytab that is replaced is read
again without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bmq.core.config import ConfigError
from bmq.core.extras import how_to_install
from bmq.core.security.jaas import JaasError, parse_single_jaas
from bmq.core.security.kerberos_names import DEFAULT, KerberosNameError, ShortNamer
from bmq.core.security.principal import java_trim
from bmq.endpoint.authentication.mechanism import MechanismContext, SaslMechanism

LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_RULES = "sasl.kerberos.principal.to.local.rules"
_SERVICE = "sasl.kerberos.service.name"
_EXAMPLE = f'{LOGIN_MODULE} required useKeyTab=true keyTab="/etc/bmq/kafka.keytab" principal="kafka/host@REALM";'


def make_gssapi(context: MechanismContext) -> SaslMechanism:
    """Return the mechanism.  Raises ConfigError if a setting is wrong, or python-gssapi is not installed."""
    where = f"listener {context.listener}: gssapi."
    try:
        import gssapi
        from gssapi.raw.misc import GSSError

        from bmq.endpoint.authentication.gssapi_mechanism import GssapiSaslMechanism
    except (ModuleNotFoundError, OSError) as error:  # OSError: the package is there, Kerberos's library is not
        raise ConfigError(
            f"{where[:-1]} needs the package gssapi and Kerberos's library ({error}): {how_to_install('kerberos')}"
        ) from None

    options = _jaas_options(context, f"{where}sasl.jaas.config")
    keytab, principal = options["keyTab"].removeprefix("file:").removeprefix("FILE:"), options["principal"]
    service = context.setting(_SERVICE) or options.get("serviceName", "")
    if service and principal.partition("/")[0] != service:
        raise ConfigError(f"{where}{_SERVICE} is {service!r}, but the principal is {principal!r}")
    if not Path(keytab).is_file():
        raise ConfigError(f"{where}sasl.jaas.config: there is no keytab {keytab}")
    try:
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        mechanisms = [gssapi.MechType.kerberos]  # and not SPNEGO, which could agree on others
        store: dict[str | bytes, str | bytes] = {"keytab": f"FILE:{keytab}"}
        credentials = gssapi.Credentials(name=name, usage="accept", mechs=mechanisms, store=store)
        default_realm = _default_realm(principal)
    except GSSError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}sasl.jaas.config: {principal!r} in {keytab}: {reason}") from None
    rules = [java_trim(rule) for rule in context.setting(_RULES, DEFAULT).split(",")]
    try:
        return GssapiSaslMechanism(credentials, ShortNamer(rules, default_realm))
    except KerberosNameError as error:
        raise ConfigError(f"{where}{_RULES}: {error}") from None


def _jaas_options(context: MechanismContext, where: str) -> Mapping[str, str]:
    text = context.setting("sasl.jaas.config")
    if not text:
        name = f"listener.name.{context.listener.lower()}.gssapi.sasl.jaas.config"
        raise ConfigError(f"{where} is not set; give {name}={_EXAMPLE}")
    try:
        options = parse_single_jaas(text, LOGIN_MODULE).options
    except JaasError as error:
        raise ConfigError(f"{where}: {error}") from None
    if options.get("useKeyTab", "").lower() != "true":
        raise ConfigError(f"{where}: useKeyTab=true is missing: a service has its key in a keytab")
    for option in ("keyTab", "principal"):
        if not options.get(option):
            raise ConfigError(f"{where}: {option} is missing; like {_EXAMPLE}")
    return options


def _default_realm(principal: str) -> str:
    """Return the default realm of krb5.conf, else the realm of ``principal``.

    The library adds the default realm to a name without a realm."""
    import gssapi
    from gssapi.raw.misc import GSSError

    try:
        canonical = str(gssapi.Name("bmq", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos))
    except GSSError:
        canonical = principal
    return canonical.rpartition("@")[2]
