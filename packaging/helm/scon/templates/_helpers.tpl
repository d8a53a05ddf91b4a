{{- define "scon.labels" -}}
app.kubernetes.io/name: scon
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "scon.selector" -}}
app.kubernetes.io/name: scon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "scon.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "scon.settings" -}}
{{- $s := deepCopy .Values.settings -}}
{{- $_ := set $s "health" (printf "127.0.0.1:%d" (int .Values.healthPort)) -}}
{{- if and .Values.metrics.port (eq (int .Values.metrics.port) (int .Values.healthPort)) }}{{ fail "metrics.port is healthPort: want two ports" }}{{ end -}}
{{- if .Values.metrics.port }}{{ $_ := set $s "metrics" (printf "0.0.0.0:%d" (int .Values.metrics.port)) }}{{ end -}}
{{- if .Values.pipe.enabled }}{{ $_ := set $s "pipe" (merge (dict "enabled" true) (deepCopy .Values.pipe.settings)) }}{{ end -}}
{{- if .Values.network.enabled }}
{{- if not .Values.network.subnets }}{{ fail "network needs network.subnets: which node has which addresses for pods" }}{{ end }}
{{- /* pods get their device in place: a pool is handed over by mounts that this container does not share */}}
{{- $_ := set $s "startup" (dict "enabled" true "pool" (dict "warm_target" 0 "minimum" 0)) -}}
{{- end -}}
{{- toYaml $s }}
{{- end }}

{{- define "scon.network" -}}
{"cniVersion": "1.0.0", "name": "scon", "plugins": [
 {"type": "scon-cni", "agentDown": "error", "handOver": "none", "bridge": "scon0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "scon", "subnet": "{{ . }}", "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
{{- end }}

{{/* Where a pod may run, and with which rights: on every node, unprivileged. */}}
{{- define "scon.pod" -}}
hostNetwork: true
hostPID: true
dnsPolicy: ClusterFirstWithHostNet
automountServiceAccountToken: false
enableServiceLinks: false
priorityClassName: system-node-critical
tolerations: [{operator: Exists}]
nodeSelector:
  kubernetes.io/os: linux
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* For containers that only change files of the node that belong to root. */}}
{{- define "scon.norights" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
seccompProfile: {type: RuntimeDefault}
capabilities: {drop: [ALL]}
{{- end }}

{{- define "scon.rights" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
privileged: false
seccompProfile:
  {{- toYaml .Values.seccompProfile | nindent 2 }}
{{- /* the runtimes' default profiles forbid to read other processes' namespaces */}}
appArmorProfile: {type: Unconfined}
capabilities:
  drop: [ALL]
  add: [NET_ADMIN, BPF, PERFMON, CHOWN, SYS_PTRACE]
{{- end }}
