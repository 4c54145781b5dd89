{{/* The workloads: name of the component, the roles of its processes, the kind of workload. */}}

{{- define "bmq.components" -}}
{{- if eq .Values.mode "combined" -}}
node: {kind: StatefulSet, isProxy: true, isBroker: true, roles: "proxy,broker,controller,coordinator"}
{{- else -}}
proxy: {kind: StatefulSet, isProxy: true, isBroker: false, roles: proxy}
broker: {kind: Deployment, isProxy: false, isBroker: true, roles: broker}
controller: {kind: Deployment, isProxy: false, isBroker: false, roles: controller}
coordinator: {kind: Deployment, isProxy: false, isBroker: false, roles: coordinator}
{{- end -}}
{{- end -}}

{{/* The component whose pods Kafka clients connect to. */}}
{{- define "bmq.proxyComponent" -}}
{{- if eq .Values.mode "combined" -}}node{{- else -}}proxy{{- end -}}
{{- end -}}

{{- define "bmq.isAutoscaled" -}}
{{- if and .autoscaling .autoscaling.enabled -}}true{{- end -}}
{{- end -}}

{{/* The lowest ordinal of the proxies. */}}
{{- define "bmq.firstProxy" -}}
{{- (index .Values (include "bmq.proxyComponent" .)).firstOrdinal -}}
{{- end -}}

{{/* How many proxies there may be: each has Services of its own. */}}
{{- define "bmq.proxiesMax" -}}
{{- $values := index .Values (include "bmq.proxyComponent" .) -}}
{{- if include "bmq.isAutoscaled" $values -}}
{{- max $values.autoscaling.maxReplicas $values.autoscaling.minReplicas -}}
{{- else -}}
{{- $values.replicas -}}
{{- end -}}
{{- end -}}

{{/* Whether settings of a proxy are known in its pod only, and not before. */}}
{{- define "bmq.hasInit" -}}
{{- if or (eq .root.Values.zone.source "node") (and .isProxy .root.Values.external.enabled) -}}true{{- end -}}
{{- end -}}

{{- define "bmq.image" -}}
{{- $image := .root.Values.image -}}
{{- if and $image.digest (not .tag) -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ .tag | default $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Where a process listens: all of the pod's addresses. */}}
{{- define "bmq.anyAddress" -}}
{{- if eq .Values.ipFamily "IPv6" -}}[::]{{- else -}}0.0.0.0{{- end -}}
{{- end -}}

{{/* The pod's own address, for the URL of another process. */}}
{{- define "bmq.podAddress" -}}
{{- if eq .Values.ipFamily "IPv6" -}}[$(POD_IP)]{{- else -}}$(POD_IP){{- end -}}
{{- end -}}

{{/* What clients inside are told of a proxy: its own Service, named as its pod. */}}
{{- define "bmq.proxyAddress" -}}
{{ include "bmq.proxyHost" . }}:{{ .Values.service.port }}
{{- end -}}

{{- define "bmq.proxyHost" -}}
$(POD_NAME).{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* What clients inside are told of each of a proxy's listeners there. */}}
{{- define "bmq.advertisedInside" -}}
{{- $all := list -}}
{{- range (include "bmq.listeners" . | fromJson).all -}}
{{- if not .isOutside -}}
{{- $all = append $all (printf "%s://%s:%d" .name (include "bmq.proxyHost" $) (int64 .port)) -}}
{{- end -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}

{{- define "bmq.bootstrap" -}}
{{ include "bmq.fullname" . }}-bootstrap.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.service.port }}
{{- end -}}

{{- define "bmq.httpUrl" -}}
{{ include "bmq.scheme" . }}://{{ include "bmq.fullname" . }}-http.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.service.httpPort }}
{{- end -}}

{{- define "bmq.root" -}}
{{- required "storage.root is not set: where do segments lie? For example --set storage.root=hdfs://namenode:8020/bmq" .Values.storage.root -}}
{{- end -}}

{{/* The Secret with what the processes show each other. */}}
{{- define "bmq.internalSecret" -}}
{{- .Values.internalSecret.name | default (printf "%s-internal" (include "bmq.fullname" .)) -}}
{{- end -}}

{{/* The metadata store's URL.  The password is in a file. */}}
{{- define "bmq.meta" -}}
{{- $etcd := .Values.etcd -}}
{{- $endpoints := $etcd.endpoints -}}
{{- if $etcd.trial.enabled -}}
{{- if $etcd.endpoints -}}
{{- fail "etcd.endpoints and etcd.trial.enabled are both set: which etcd has the cluster's metadata? Take one of them away" -}}
{{- end -}}
{{- if or $etcd.user $etcd.tls.enabled -}}
{{- fail "etcd.trial has neither users nor TLS: take etcd.user and etcd.tls.enabled away, or name your own etcd by etcd.endpoints" -}}
{{- end -}}
{{- $endpoints = list (printf "%s-etcd.%s.svc.%s:2379" (include "bmq.fullname" .) .Release.Namespace .Values.clusterDomain) -}}
{{- end -}}
{{- if not $endpoints -}}
{{- fail "etcd.endpoints is not set: name your etcd, --set etcd.endpoints={etcd-0:2379,etcd-1:2379,etcd-2:2379}, or --set etcd.trial.enabled=true to try BMQ" -}}
{{- end -}}
{{- if and $etcd.user (not $etcd.passwordSecret.name) -}}
{{- fail "etcd.user needs etcd.passwordSecret.name, the Secret with the password" -}}
{{- end -}}
etcd://{{ with $etcd.user }}{{ urlquery . }}@{{ end }}{{ join "," $endpoints }}
{{- if $etcd.tls.enabled -}}
{{- if not $etcd.tls.secret -}}
{{- fail "etcd.tls.enabled needs etcd.tls.secret, the Secret with the authority's certificate" -}}
{{- end -}}
{{- if ne (empty $etcd.tls.certKey) (empty $etcd.tls.keyKey) -}}
{{- fail "etcd.tls.certKey and etcd.tls.keyKey go together: a certificate and its key" -}}
{{- end -}}
?ca=/etc/bmq/etcd-tls/ca.crt
{{- if $etcd.tls.certKey }}&cert=/etc/bmq/etcd-tls/tls.crt&key=/etc/bmq/etcd-tls/tls.key{{ end }}
{{- end -}}
{{- end -}}

{{- define "bmq.hasHdfsConf" -}}
{{- if or .Values.hdfs.configMap .Values.hdfs.coreSite .Values.hdfs.hdfsSite -}}true{{- end -}}
{{- end -}}

{{/* Settings of a component as TOML.  JSON's numbers, booleans and strings are TOML's.  Not `merge`, for which a setting of
0 or false is none. */}}
{{- define "bmq.toml" -}}
{{- $settings := dict -}}
{{- range $key, $value := include "bmq.securitySettings" . | fromJson -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- range $key, $value := .root.Values.config -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- range $key, $value := .values.config -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- range $key, $value := $settings }}
{{ $key | quote }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{- define "bmq.hadoopXml" -}}
<?xml version="1.0"?>
<configuration>
{{- range $name, $value := . }}
  <property><name>{{ $name | html }}</name><value>{{ $value | toString | html }}</value></property>
{{- end }}
</configuration>
{{- end -}}

{{/* What a process reads from ConfigMaps of this chart at its start: another one of it is a reason to start again. */}}
{{- define "bmq.checksum" -}}
{{- $hadoop := list (include "bmq.hadoopXml" .root.Values.hdfs.coreSite) (include "bmq.hadoopXml" .root.Values.hdfs.hdfsSite) -}}
{{- $script := .root.Files.Get "files/pod_settings.py" -}}
{{- list (include "bmq.toml" .) $hadoop (eq (include "bmq.hasInit" (dict "root" .root "isProxy" .component.isProxy)) "true" | ternary $script "") | toJson | sha256sum -}}
{{- end -}}


{{/* How a process reaches the metadata store: environment, and the files that it names. */}}
{{- define "bmq.storeEnv" -}}
- name: BMQ_CLUSTER
  value: {{ include "bmq.clusterName" . | quote }}
- name: BMQ_META
  value: {{ include "bmq.meta" . | quote }}
{{- if .Values.etcd.user }}
- name: BMQ_META_PASSWORD_FILE
  value: /etc/bmq/etcd-password/password
{{- end }}
{{- end -}}

{{- define "bmq.storeMounts" -}}
{{- if .Values.etcd.user }}
- {name: etcd-password, mountPath: /etc/bmq/etcd-password, readOnly: true}
{{- end }}
{{- if .Values.etcd.tls.enabled }}
- {name: etcd-tls, mountPath: /etc/bmq/etcd-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bmq.storeVolumes" -}}
{{- if .Values.etcd.user }}
- name: etcd-password
  secret:
    secretName: {{ .Values.etcd.passwordSecret.name }}
    defaultMode: 0440
    items: [{key: {{ .Values.etcd.passwordSecret.key | quote }}, path: password}]
{{- end }}
{{- if .Values.etcd.tls.enabled }}
- name: etcd-tls
  secret:
    secretName: {{ .Values.etcd.tls.secret }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.etcd.tls.caKey | quote }}, path: ca.crt}
      {{- if .Values.etcd.tls.certKey }}
      - {key: {{ .Values.etcd.tls.certKey | quote }}, path: tls.crt}
      - {key: {{ .Values.etcd.tls.keyKey | quote }}, path: tls.key}
      {{- end }}
{{- end }}
{{- end -}}
