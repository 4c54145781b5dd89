{{/* Who may use which port: listeners with TLS and SASL, the HTTP port, the ports between processes.

Settings that are no secrets are in the ConfigMap, as settings of `bmq serve`.  Secrets are files of existing Secrets,
mounted below /etc/bmq; the settings name the files. */}}

{{/* The listeners of a proxy, {all: [{name, key, port, portName, protocol, tls, mechanisms, isOutside}]}: those inside
first.  key is the value that describes it, for messages. */}}
{{- define "bmq.listeners" -}}
{{- $all := list (merge (dict "name" "INTERNAL" "key" "listener" "port" .Values.service.port "portName" "kafka" "isOutside" false) .Values.listener) -}}
{{- range $number, $each := .Values.moreListeners -}}
{{- $place := dict "key" (printf "moreListeners[%d]" $number) "portName" (printf "kafka-%d" (add1 $number)) "isOutside" false -}}
{{- $all = append $all (merge $place $each (dict "tls" dict "mechanisms" list)) -}}
{{- end -}}
{{- if .Values.external.enabled -}}
{{- $external := pick .Values.external "port" "protocol" "tls" "mechanisms" -}}
{{- $all = append $all (merge (dict "name" .Values.external.listener "key" "external" "portName" "kafka-external" "isOutside" true) $external) -}}
{{- end -}}
{{- dict "all" $all | toJson -}}
{{- end -}}

{{- define "bmq.hasTls" -}}{{- if has .protocol (list "SSL" "SASL_SSL") -}}true{{- end -}}{{- end -}}
{{- define "bmq.hasSasl" -}}{{- if hasPrefix "SASL_" .protocol -}}true{{- end -}}{{- end -}}
{{- define "bmq.slug" -}}{{- . | lower | replace "_" "-" -}}{{- end -}}

{{/* The mechanisms of a SASL listener, or of the HTTP port's passwords: SCRAM-SHA-512 unless others are named. */}}
{{- define "bmq.mechanisms" -}}{{- .mechanisms | default (list "SCRAM-SHA-512") | join "," -}}{{- end -}}

{{/* Whether HTTP clients log in. */}}
{{- define "bmq.httpAsks" -}}{{- if ne .Values.http.authentication "none" -}}true{{- end -}}{{- end -}}

{{- define "bmq.scheme" -}}{{- if .Values.http.tls.secret -}}https{{- else -}}http{{- end -}}{{- end -}}

{{/* What whoever reaches it may use without showing who he is: one port a line. */}}
{{- define "bmq.openPorts" -}}
{{- range (include "bmq.listeners" . | fromJson).all }}
{{- if not (or (include "bmq.hasSasl" .) (and (include "bmq.hasTls" .) (eq (.tls.clientAuth | default "none") "required"))) }}
Kafka listener {{ .name }}, port {{ .port }}, {{ .protocol }}: set {{ .key }}.protocol=SASL_SSL, or SSL with tls.clientAuth=required
{{- end }}
{{- end }}
{{- if not (include "bmq.httpAsks" .) }}
HTTP, port {{ .Values.service.httpPort }}: set http.authentication=basic
{{- end }}
{{- if not (or .Values.internalSecret.required (and .Values.internalTls.secret .Values.internalTls.required)) }}
the port between processes, {{ .Values.service.internalPort }}: set internalSecret.required=true
{{- end }}
{{- end -}}

{{/* Settings of `bmq serve`, as JSON.  Takes root and component. */}}
{{- define "bmq.securitySettings" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $settings := dict -}}
{{- if $values.authorization.enabled -}}
{{- $_ := set $settings "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer" -}}
{{- $_ := set $settings "super.users" (join ";" $values.authorization.superUsers) -}}
{{- $_ := set $settings "allow.everyone.if.no.acl.found" $values.authorization.allowEveryoneIfNoAclFound -}}
{{- end -}}
{{- if $values.internalTls.secret -}}
{{- $_ := set $settings "internal.ssl.keystore.location" "/etc/bmq/internal-tls" -}}
{{- $_ := set $settings "internal.ssl.truststore.location" "/etc/bmq/internal-tls/ca.crt" -}}
{{- $_ := set $settings "internal.ssl.required" $values.internalTls.required -}}
{{- end -}}
{{- if $values.http.tls.secret -}}
{{- $_ := set $settings "http_tls" true -}}
{{- $_ := set $settings "listener.name.http.ssl.keystore.location" "/etc/bmq/http-tls" -}}
{{- end -}}
{{- if include "bmq.httpAsks" $root -}}
{{- $_ := set $settings "http_authentication" $values.http.authentication -}}
{{- $_ := set $settings "http_metrics_authentication" $values.http.metricsAuthentication -}}
{{- end -}}
{{- with $values.sasl.oauthbearer -}}
{{- if .jwksUrl -}}
{{- $_ := set $settings "sasl.oauthbearer.jwks.endpoint.url" .jwksUrl -}}
{{- $_ := set $settings "sasl.oauthbearer.expected.issuer" .issuer -}}
{{- $_ := set $settings "sasl.oauthbearer.expected.audience" (join "," .audiences) -}}
{{- $_ := set $settings "sasl.oauthbearer.sub.claim.name" .subClaim -}}
{{- $_ := set $settings "sasl.oauthbearer.scope.claim.name" .scopeClaim -}}
{{- end -}}
{{- end -}}
{{- if $values.sasl.delegationTokens.secret -}}
{{- $_ := set $settings "delegation.token.secret.key.file" "/etc/bmq/delegation-tokens/secret" -}}
{{- end -}}
{{- if contains "basic" $values.http.authentication -}}
{{- $_ := set $settings "listener.name.http.sasl.enabled.mechanisms" (include "bmq.mechanisms" $values.http) -}}
{{- end -}}
{{- $names := list -}}
{{- if include "bmq.httpAsks" $root -}}{{- $names = list "http" -}}{{- end -}}
{{- if .component.isProxy -}}
{{- range (include "bmq.listeners" $root | fromJson).all -}}
{{- $prefix := printf "listener.name.%s" (lower .name) -}}
{{- if include "bmq.hasTls" . -}}
{{- $_ := set $settings (printf "%s.ssl.keystore.location" $prefix) (printf "/etc/bmq/tls/%s" (include "bmq.slug" .name)) -}}
{{- if ne (.tls.clientAuth | default "none") "none" -}}
{{- $_ := set $settings (printf "%s.ssl.client.auth" $prefix) .tls.clientAuth -}}
{{- $_ := set $settings (printf "%s.ssl.truststore.location" $prefix) (printf "/etc/bmq/clients-ca/%s/ca.crt" (include "bmq.slug" .name)) -}}
{{- with .tls.principalMappingRules -}}
{{- $_ := set $settings (printf "%s.ssl.principal.mapping.rules" $prefix) . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if include "bmq.hasSasl" . -}}
{{- $_ := set $settings (printf "%s.sasl.enabled.mechanisms" $prefix) (include "bmq.mechanisms" .) -}}
{{- $names = append $names (lower .name) -}}
{{- if has "GSSAPI" .mechanisms -}}
{{- $_ := set $settings (printf "%s.gssapi.sasl.kerberos.service.name" $prefix) $values.sasl.gssapi.serviceName -}}
{{- with $values.sasl.gssapi.principalToLocalRules -}}
{{- $_ := set $settings (printf "%s.gssapi.sasl.kerberos.principal.to.local.rules" $prefix) . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $names -}}
{{- if $values.sasl.plain.secret -}}
{{- $_ := set $settings (printf "listener.name.%s.plain.sasl.jaas.config.file" .) "/etc/bmq/plain-users/users" -}}
{{- end -}}
{{- if and $values.sasl.oauthbearer.jwksUrl $values.sasl.oauthbearer.caSecret -}}
{{- $_ := set $settings (printf "listener.name.%s.oauthbearer.sasl.jaas.config" .) "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ssl.truststore.type=\"PEM\" ssl.truststore.location=\"/etc/bmq/oauth-ca/ca.crt\";" -}}
{{- end -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* Environment of the container: a Kerberos principal may name its pod, which only Kubernetes knows. */}}
{{- define "bmq.securityEnv" -}}
{{- $gssapi := .root.Values.sasl.gssapi -}}
{{- if .component.isProxy }}
{{- range (include "bmq.listeners" .root | fromJson).all }}
{{- if and (include "bmq.hasSasl" .) (has "GSSAPI" .mechanisms) }}
- name: BMQ_LISTENER_NAME_{{ .name }}_GSSAPI_SASL_JAAS_CONFIG
  value: {{ printf "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab=\"/etc/bmq/keytab/keytab\" principal=\"%s\";" $gssapi.principal | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The ConfigMap with krb5.conf, {name, key}: a process has one for its log-in to HDFS and for its listeners.  Takes root
and component. */}}
{{- define "bmq.krb5" -}}
{{- $gssapi := .root.Values.sasl.gssapi -}}
{{- if and .component.isProxy $gssapi.keytabSecret.name $gssapi.krb5ConfigMap.name -}}
{{- $gssapi.krb5ConfigMap | toJson -}}
{{- else -}}
{{- .root.Values.hdfs.kerberos.krb5ConfigMap | toJson -}}
{{- end -}}
{{- end -}}

{{/* Files of Secrets and ConfigMaps, {all: [{name, path, kind, from, items}]}: items are keys by file.  Takes root and
component. */}}
{{- define "bmq.securityFiles" -}}
{{- $values := .root.Values -}}
{{- $pair := dict "tls.crt" "tls.crt" "tls.key" "tls.key" -}}
{{- $all := list -}}
{{- if $values.internalTls.secret -}}
{{- $all = append $all (dict "name" "internal-tls" "path" "internal-tls" "from" $values.internalTls.secret "items" (merge (dict "ca.crt" $values.internalTls.caKey) $pair)) -}}
{{- end -}}
{{- with $values.http.tls.secret -}}
{{- $all = append $all (dict "name" "http-tls" "path" "http-tls" "from" . "items" $pair) -}}
{{- end -}}
{{- with $values.sasl.plain -}}
{{- if .secret -}}{{- $all = append $all (dict "name" "plain-users" "path" "plain-users" "from" .secret "items" (dict "users" .key)) -}}{{- end -}}
{{- end -}}
{{- with $values.sasl.oauthbearer -}}
{{- if and .jwksUrl .caSecret -}}{{- $all = append $all (dict "name" "oauth-ca" "path" "oauth-ca" "from" .caSecret "items" (dict "ca.crt" .caKey)) -}}{{- end -}}
{{- end -}}
{{- with $values.sasl.delegationTokens -}}
{{- if .secret -}}{{- $all = append $all (dict "name" "delegation-tokens" "path" "delegation-tokens" "from" .secret "items" (dict "secret" .key)) -}}{{- end -}}
{{- end -}}
{{- with $values.hdfs.kerberos.keytabSecret -}}
{{- if .name -}}{{- $all = append $all (dict "name" "hdfs-keytab" "path" "hdfs-keytab" "from" .name "items" (dict "keytab" .key)) -}}{{- end -}}
{{- end -}}
{{- with include "bmq.krb5" . | fromJson -}}
{{- if .name -}}{{- $all = append $all (dict "name" "krb5" "path" "krb5" "isConfigMap" true "from" .name "items" (dict "krb5.conf" .key)) -}}{{- end -}}
{{- end -}}
{{- if .component.isProxy -}}
{{- with $values.sasl.gssapi -}}
{{- if .keytabSecret.name -}}{{- $all = append $all (dict "name" "keytab" "path" "keytab" "from" .keytabSecret.name "items" (dict "keytab" .keytabSecret.key)) -}}{{- end -}}
{{- end -}}
{{- range (include "bmq.listeners" .root | fromJson).all -}}
{{- if include "bmq.hasTls" . -}}
{{- $slug := include "bmq.slug" .name -}}
{{- $all = append $all (dict "name" (printf "tls-listener-%s" $slug) "path" (printf "tls/%s" $slug) "from" .tls.secret "items" $pair) -}}
{{- if ne (.tls.clientAuth | default "none") "none" -}}
{{- $all = append $all (dict "name" (printf "clients-ca-%s" $slug) "path" (printf "clients-ca/%s" $slug) "from" .tls.clientCaSecret "items" (dict "ca.crt" (.tls.clientCaKey | default "ca.crt"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "all" $all | toJson -}}
{{- end -}}

{{- define "bmq.securityMounts" -}}
{{- range (include "bmq.securityFiles" . | fromJson).all }}
- {name: {{ .name }}, mountPath: /etc/bmq/{{ .path }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bmq.securityVolumes" -}}
{{- range (include "bmq.securityFiles" . | fromJson).all }}
- name: {{ .name }}
  {{- if .isConfigMap }}
  configMap:
    name: {{ .from }}
  {{- else }}
  secret:
    secretName: {{ .from }}
    defaultMode: 0440
  {{- end }}
    items:
      {{- range $file, $key := .items }}
      - {key: {{ $key | quote }}, path: {{ $file }}}
      {{- end }}
{{- end }}
{{- end -}}

{{/* Fail with what to do where values contradict each other. */}}
{{- define "bmq.checkSecurity" -}}
{{- $values := .Values -}}
{{- $names := dict -}}
{{- $ports := dict (toString $values.service.httpPort) "service.httpPort" (toString $values.service.internalPort) "service.internalPort" -}}
{{- range (include "bmq.listeners" . | fromJson).all -}}
{{- if hasKey $names .name -}}
{{- fail (printf "%s.name: there is a listener %s already; take another name" .key .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- $port := toString (int64 .port) -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "%s.port %s is another listener's port (%s): take another" .key $port (get $ports $port)) -}}
{{- end -}}
{{- $_ := set $ports $port .key -}}
{{- if include "bmq.hasTls" . -}}
{{- if not .tls.secret -}}
{{- fail (printf "%s.protocol is %s: it needs %s.tls.secret, an existing Secret of the type kubernetes.io/tls" .key .protocol .key) -}}
{{- end -}}
{{- if and (ne (.tls.clientAuth | default "none") "none") (not .tls.clientCaSecret) -}}
{{- fail (printf "%s.tls.clientAuth is %s: it needs %s.tls.clientCaSecret, the Secret with the authority of clients' certificates" .key .tls.clientAuth .key) -}}
{{- end -}}
{{- else if .tls.secret -}}
{{- fail (printf "%s.tls.secret is set, and %s.protocol is %s: set SSL or SASL_SSL, or take the Secret away" .key .key .protocol) -}}
{{- end -}}
{{- if and .mechanisms (not (include "bmq.hasSasl" .)) -}}
{{- fail (printf "%s.mechanisms are set, and %s.protocol is %s: set SASL_SSL, or take the mechanisms away" .key .key .protocol) -}}
{{- end -}}
{{- include "bmq.checkMechanisms" (dict "values" $values "key" .key "mechanisms" .mechanisms) -}}
{{- end -}}
{{- include "bmq.checkMechanisms" (dict "values" $values "key" "http" "mechanisms" $values.http.mechanisms) -}}
{{- if and $values.http.mechanisms (not (contains "basic" $values.http.authentication)) -}}
{{- fail (printf "http.mechanisms are set, and http.authentication is %s: set basic, or take the mechanisms away" $values.http.authentication) -}}
{{- end -}}
{{- if and (contains "bearer" $values.http.authentication) (not $values.sasl.oauthbearer.jwksUrl) -}}
{{- fail (printf "http.authentication is %s: it needs sasl.oauthbearer.jwksUrl, the keys of the tokens' issuer" $values.http.authentication) -}}
{{- end -}}
{{- with $values.authorization -}}
{{- if and .enabled (not .superUsers) (not .allowEveryoneIfNoAclFound) -}}
{{- fail "authorization.enabled needs authorization.superUsers, for example {User:admin}: nobody else could make the first ACL" -}}
{{- end -}}
{{- if and .superUsers (not .enabled) -}}
{{- fail "authorization.superUsers are set, and authorization.enabled is false: everybody may do everything; set it to true" -}}
{{- end -}}
{{- end -}}
{{- with $values.hdfs.kerberos -}}
{{- if and .principal (not .keytabSecret.name) -}}
{{- fail "hdfs.kerberos.principal needs hdfs.kerberos.keytabSecret.name, the Secret with its keytab; of a ticket cache that others renew, config.hdfs_principal is the principal" -}}
{{- end -}}
{{- if and .keytabSecret.name (not (include "bmq.hasHdfsConf" $)) -}}
{{- fail "hdfs.kerberos.keytabSecret.name needs Hadoop's configuration, as hadoop.security.authentication=kerberos and the NameNodes' principal: hdfs.configMap, or hdfs.coreSite and hdfs.hdfsSite" -}}
{{- end -}}
{{- if and .krb5ConfigMap.name $values.sasl.gssapi.keytabSecret.name $values.sasl.gssapi.krb5ConfigMap.name (ne (.krb5ConfigMap | toJson) ($values.sasl.gssapi.krb5ConfigMap | toJson)) -}}
{{- fail "hdfs.kerberos.krb5ConfigMap and sasl.gssapi.krb5ConfigMap differ, and a process reads one krb5.conf: name one of them, with all realms" -}}
{{- end -}}
{{- end -}}
{{- if and $values.firstUser.name (not $values.firstUser.passwordSecret.name) -}}
{{- fail "firstUser.name needs firstUser.passwordSecret.name, the Secret with the password" -}}
{{- end -}}
{{- with $values.metrics.serviceMonitor -}}
{{- if and .enabled (include "bmq.httpAsks" $) $values.http.metricsAuthentication (not .basicAuth.secret) (not .bearer.secret) -}}
{{- fail "metrics.serviceMonitor.enabled, and /metrics asks for a log-in: give metrics.serviceMonitor.basicAuth.secret or bearer.secret, or set http.metricsAuthentication=false" -}}
{{- end -}}
{{- if and .basicAuth.secret .bearer.secret -}}
{{- fail "metrics.serviceMonitor.basicAuth.secret and bearer.secret are both set: Prometheus sends one of them" -}}
{{- end -}}
{{- end -}}
{{- $open := include "bmq.openPorts" . | trim -}}
{{- if and $open (not $values.insecure) -}}
{{- fail (printf "insecure is false, and whoever reaches these ports may use them without showing who he is; secure them, or set insecure=true and bound by networkPolicy who reaches them:\n%s" $open) -}}
{{- end -}}
{{- end -}}

{{- define "bmq.checkMechanisms" -}}
{{- $sasl := .values.sasl -}}
{{- if and (has "PLAIN" .mechanisms) (not $sasl.plain.secret) -}}
{{- fail (printf "%s.mechanisms has PLAIN: it needs sasl.plain.secret, the Secret with its users" .key) -}}
{{- end -}}
{{- if and (has "OAUTHBEARER" .mechanisms) (not $sasl.oauthbearer.jwksUrl) -}}
{{- fail (printf "%s.mechanisms has OAUTHBEARER: it needs sasl.oauthbearer.jwksUrl, the keys of the tokens' issuer" .key) -}}
{{- end -}}
{{- if and (has "GSSAPI" .mechanisms) (not (and $sasl.gssapi.keytabSecret.name $sasl.gssapi.principal)) -}}
{{- fail (printf "%s.mechanisms has GSSAPI: it needs sasl.gssapi.keytabSecret.name and sasl.gssapi.principal" .key) -}}
{{- end -}}
{{- end -}}
