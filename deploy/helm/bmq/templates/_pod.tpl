{{/* The pod of a component.  Nothing in it changes with the chart's version: only what a process is started with starts it
again.  Takes root, name, values (the component's) and component (see bmq.components). */}}

{{- define "bmq.podTemplate" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $hasInit := include "bmq.hasInit" (dict "root" $root "isProxy" .component.isProxy) -}}
{{- $grace := include "bmq.grace" (dict "name" .name "values" $values) -}}
metadata:
  labels:
    {{- include "bmq.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
    bmq.cluster: {{ include "bmq.clusterName" $root | quote }}
    {{- with merge (dict) $root.Values.podLabels $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: bmq
    checksum/config: {{ include "bmq.checksum" . }}
    {{- with merge (dict) $values.podAnnotations $root.Values.podAnnotations $root.Values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "bmq.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $grace }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector | default $root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations | default $root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity | default $root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $root.Values.topologySpread.enabled }}
  topologySpreadConstraints:
    {{- $kind := .component.kind }}
    {{- $name := .name }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: {{ $root.Values.topologySpread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "bmq.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $name }}
      {{- if eq $kind "Deployment" }}
      matchLabelKeys: [pod-template-hash]
      {{- end }}
    {{- end }}
  {{- end }}
  {{- if $hasInit }}
  initContainers:
    - name: settings
      image: {{ include "bmq.image" (dict "root" $root "tag" $values.imageTag) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [python, /etc/bmq/scripts/pod_settings.py]
      env:
        {{- include "bmq.podEnv" . | nindent 8 }}
        {{- include "bmq.initEnv" . | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      resources:
        {{- toYaml $root.Values.smallResources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/bmq/config, readOnly: true}
        - {name: scripts, mountPath: /etc/bmq/scripts, readOnly: true}
        - {name: settings, mountPath: /run/bmq}
        {{- if eq $root.Values.zone.source "node" }}
        - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
        {{- end }}
  {{- end }}
  containers:
    - name: bmq
      image: {{ include "bmq.image" (dict "root" $root "tag" $values.imageTag) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [bmq, serve]
      env:
        {{- include "bmq.podEnv" . | nindent 8 }}
        {{- include "bmq.env" . | nindent 8 }}
        {{- with $root.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- if .component.isProxy }}
        {{- range (include "bmq.listeners" $root | fromJson).all }}
        - {name: {{ .portName }}, containerPort: {{ .port }}, protocol: TCP}
        {{- end }}
        {{- end }}
        - {name: internal, containerPort: {{ $root.Values.service.internalPort }}, protocol: TCP}
        - {name: http, containerPort: {{ $root.Values.service.httpPort }}, protocol: TCP}
      startupProbe:
        httpGet: {path: /healthz, port: http{{ with include "bmq.scheme" $root | upper }}{{ if ne . "HTTP" }}, scheme: {{ . }}{{ end }}{{ end }}}
        {{- toYaml $root.Values.probes.startup | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http{{ with include "bmq.scheme" $root | upper }}{{ if ne . "HTTP" }}, scheme: {{ . }}{{ end }}{{ end }}}
        {{- toYaml $root.Values.probes.readiness | nindent 8 }}
      livenessProbe:
        httpGet: {path: /healthz, port: http{{ with include "bmq.scheme" $root | upper }}{{ if ne . "HTTP" }}, scheme: {{ . }}{{ end }}{{ end }}}
        {{- toYaml $root.Values.probes.liveness | nindent 8 }}
      {{- if $values.preStopSeconds }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ $values.preStopSeconds }}}
      {{- end }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/bmq/config, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if $hasInit }}
        - {name: settings, mountPath: /run/bmq, readOnly: true}
        {{- end }}
        - {name: internal-secret, mountPath: /etc/bmq/internal-secret, readOnly: true}
        {{- include "bmq.securityMounts" . | nindent 8 }}
        {{- include "bmq.storeMounts" $root | nindent 8 }}
        {{- if include "bmq.hasHdfsConf" $root }}
        - {name: hadoop-conf, mountPath: /etc/hadoop/conf, readOnly: true}
        {{- end }}
        {{- with $root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "bmq.fullname" $root }}-config}
    - name: tmp
      emptyDir: {}
    {{- if $hasInit }}
    - name: scripts
      configMap: {name: {{ include "bmq.fullname" $root }}-scripts}
    - name: settings
      emptyDir: {}
    {{- if eq $root.Values.zone.source "node" }}
    - name: token
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    {{- end }}
    {{- end }}
    - name: internal-secret
      secret:
        secretName: {{ include "bmq.internalSecret" $root }}
        defaultMode: 0440
        items: [{key: {{ $root.Values.internalSecret.key | quote }}, path: secret}]
    {{- include "bmq.securityVolumes" . | nindent 4 }}
    {{- include "bmq.storeVolumes" $root | nindent 4 }}
    {{- if include "bmq.hasHdfsConf" $root }}
    - name: hadoop-conf
      configMap: {name: {{ $root.Values.hdfs.configMap | default (printf "%s-hadoop" (include "bmq.fullname" $root)) }}}
    {{- end }}
    {{- with $root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Seconds that the kubelet gives a pod: all that the process may take, and 10 more.  20 s is what a process takes at
most, after its drain, to close what could not be handed over. */}}
{{- define "bmq.grace" -}}
{{- $needed := add .values.preStopSeconds .values.drainSeconds 20 -}}
{{- $set := .values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $set -}}
{{- add $needed 10 -}}
{{- else if lt (int64 $set) $needed -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %d: a process takes up to %d s to end (preStopSeconds + drainSeconds + 20); raise it, or lower drainSeconds" .name (int64 $set) $needed) -}}
{{- else -}}
{{- int64 $set -}}
{{- end -}}
{{- end -}}

{{/* What the pod knows about itself. */}}
{{- define "bmq.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if .component.isProxy }}
- name: POD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- end }}
{{- end -}}

{{/* What the init container makes settings of. */}}
{{- define "bmq.initEnv" -}}
{{- $root := .root -}}
- name: SETTINGS_BASE
  value: /etc/bmq/config/{{ .name }}.toml
- name: SETTINGS_FILE
  value: /run/bmq/bmq.toml
{{- if eq $root.Values.zone.source "node" }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: ZONE_LABEL
  value: {{ $root.Values.zone.label | quote }}
{{- end }}
{{- if and .component.isProxy $root.Values.external.enabled }}
{{- $external := $root.Values.external }}
- name: NODE_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: INSIDE
  value: {{ include "bmq.advertisedInside" $root | quote }}
- name: OUTSIDE_LISTENER
  value: {{ $external.listener }}
- name: OUTSIDE_HOST
  value: {{ $external.advertisedHost | default (eq $external.type "NodePort" | ternary "$(NODE_IP)" "") | quote }}
- name: OUTSIDE_HOSTS
  value: {{ join "," $external.advertisedHosts | quote }}
- name: OUTSIDE_FIRST
  value: {{ include "bmq.firstProxy" $root | quote }}
- name: OUTSIDE_PORT
  {{- if $external.advertisedPort }}
  value: {{ $external.advertisedPort | quote }}
  {{- else if eq $external.type "NodePort" }}
  value: {{ printf "%d+$(POD_INDEX)" (sub $external.nodePorts.first (include "bmq.firstProxy" $root)) | quote }}
  {{- else }}
  value: {{ $external.port | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The settings that the chart decides. */}}
{{- define "bmq.env" -}}
{{- $root := .root -}}
{{- $any := include "bmq.anyAddress" $root -}}
- name: BMQ_ROLES
  value: {{ .component.roles }}
- name: BMQ_ROOT
  value: {{ include "bmq.root" $root | quote }}
{{ include "bmq.storeEnv" $root }}
- name: BMQ_CONFIG
  value: {{ eq (include "bmq.hasInit" (dict "root" $root "isProxy" .component.isProxy)) "true" | ternary "/run/bmq/bmq.toml" (printf "/etc/bmq/config/%s.toml" .name) }}
- name: BMQ_INTERNAL
  value: {{ printf "%s:%d" $any (int64 $root.Values.service.internalPort) | quote }}
- name: BMQ_INTERNAL_SECRET_FILE
  value: /etc/bmq/internal-secret/secret
- name: BMQ_INTERNAL_SECRET_REQUIRED
  value: {{ $root.Values.internalSecret.required | quote }}
- name: BMQ_INTERNAL_ADVERTISE
  value: {{ printf "%s:%d" (include "bmq.podAddress" $root) (int64 $root.Values.service.internalPort) | quote }}
- name: BMQ_HTTP
  value: {{ printf "%s:%d" $any (int64 $root.Values.service.httpPort) | quote }}
- name: BMQ_INSECURE
  value: {{ ne (include "bmq.openPorts" $root | trim) "" | quote }}
- name: BMQ_LOG_FORMAT
  value: {{ $root.Values.logFormat | quote }}
{{- if $root.Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ $root.Values.tracing.endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $root.Values.tracing.ratio | quote }}
{{- end }}
- name: BMQ_DRAIN_MS
  value: {{ mul 1000 .values.drainSeconds | quote }}
{{- if .component.isProxy }}
- name: BMQ_NODE_ID
  value: $(POD_INDEX)
{{- $listeners := (include "bmq.listeners" $root | fromJson).all }}
{{- if or (gt (len $listeners) 1) (ne (first $listeners).protocol "PLAINTEXT") }}
{{- $listen := list }}
{{- $protocols := list }}
{{- range $listeners }}
{{- $listen = append $listen (printf "%s://%s:%d" .name $any (int64 .port)) }}
{{- $protocols = append $protocols (printf "%s:%s" .name .protocol) }}
{{- end }}
- name: BMQ_LISTENERS
  value: {{ join "," $listen | quote }}
- name: BMQ_LISTENER_SECURITY_PROTOCOL_MAP
  value: {{ join "," $protocols | quote }}
{{- if not $root.Values.external.enabled }}
- name: BMQ_ADVERTISED_LISTENERS
  value: {{ include "bmq.advertisedInside" $root | quote }}
{{- end }}
{{- else }}
- name: BMQ_LISTEN
  value: {{ printf "%s:%d" $any (int64 $root.Values.service.port) | quote }}
- name: BMQ_ADVERTISE
  value: {{ include "bmq.proxyAddress" $root | quote }}
{{- end }}
{{- include "bmq.securityEnv" . }}
{{- end }}
{{- if eq $root.Values.zone.source "podLabel" }}
- name: BMQ_ZONE
  valueFrom: {fieldRef: {fieldPath: {{ printf "metadata.labels['%s']" $root.Values.zone.label | quote }}}}
{{- else if eq $root.Values.zone.source "value" }}
- name: BMQ_ZONE
  value: {{ required "zone.value is not set: zone.source=value gives all pods this zone" $root.Values.zone.value | quote }}
{{- end }}
- name: HADOOP_USER_NAME
  value: {{ $root.Values.hdfs.user | quote }}
{{- if include "bmq.hasHdfsConf" $root }}
- name: HADOOP_CONF_DIR
  value: /etc/hadoop/conf
{{- end }}
{{- with $root.Values.hdfs.kerberos }}
{{- if .keytabSecret.name }}
- name: BMQ_HDFS_KEYTAB
  value: /etc/bmq/hdfs-keytab/keytab
{{- end }}
{{- if .principal }}
- name: BMQ_HDFS_PRINCIPAL
  value: {{ .principal | quote }}
{{- end }}
{{- end }}
{{- if (include "bmq.krb5" . | fromJson).name }}
- {name: KRB5_CONFIG, value: /etc/bmq/krb5/krb5.conf}
{{- end }}
- name: HOME
  value: /tmp
{{- end -}}
