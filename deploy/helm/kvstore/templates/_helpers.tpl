{{- define "kvstore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvstore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvstore.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvstore.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvstore.labels" -}}
{{ include "kvstore.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Labels by which everything finds the nodes' pods, and those of nothing else. */ -}}
{{- define "kvstore.selector" -}}
app.kubernetes.io/name: {{ include "kvstore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end -}}

{{- define "kvstore.otherLabels" -}}
app.kubernetes.io/name: {{ include "kvstore.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Labels that let a pod through the NetworkPolicy as values.yaml has it. */ -}}
{{- define "kvstore.clientLabels" -}}
{{ include "kvstore.otherLabels" . }}
kvstore-client: "true"
{{- end -}}

{{- define "kvstore.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s%s" (ternary "" (printf "%s/" $image.registry) (empty $image.registry)) $image.repository -}}
{{- if $image.digest -}}{{ $name }}@{{ $image.digest }}{{- else -}}{{ $name }}:{{ $image.tag | default .Chart.AppVersion }}{{- end -}}
{{- end -}}

{{- define "kvstore.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "kvstore.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* A quantity such as 4Gi in MiB. */ -}}
{{- define "kvstore.mib" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- if hasSuffix "Ti" . -}}{{ mul $number 1048576 }}{{- else if hasSuffix "Gi" . -}}{{ mul $number 1024 }}{{- else -}}{{ $number }}{{- end -}}
{{- end -}}

{{- define "kvstore.overheadMib" -}}
{{- if eq .Values.resources.memoryOverhead "auto" -}}
{{- add 512 (div (mul 4 (include "kvstore.mib" .Values.dram.capacity | int64)) 100) -}}
{{- else -}}
{{- include "kvstore.mib" .Values.resources.memoryOverhead -}}
{{- end -}}
{{- end -}}

{{- define "kvstore.memoryLimit" -}}
{{- add (include "kvstore.mib" .Values.dram.capacity | int64) (include "kvstore.overheadMib" . | int64) -}}Mi
{{- end -}}

{{- /* The memory file's own file system; a little more than the node may take, for its lock file. */ -}}
{{- define "kvstore.memoryVolume" -}}
{{- add (include "kvstore.mib" .Values.dram.capacity | int64) 16 -}}Mi
{{- end -}}

{{- /* A claim has room beside what the tier may take. */ -}}
{{- define "kvstore.claimSize" -}}
{{- $mib := include "kvstore.mib" .Values.nvme.capacity | int64 -}}
{{- add $mib (div $mib 20) 1024 -}}Mi
{{- end -}}

{{- define "kvstore.socketHostPath" -}}
{{- $path := .Values.socket.hostPath -}}
{{- if eq $path "auto" -}}
{{- ternary "/run/kvstore" "" (eq .Values.mode "daemonset") -}}
{{- else if ne $path "none" -}}
{{- $path -}}
{{- end -}}
{{- end -}}

{{- /* Whether this is a cell whose nodes give each other what one of them alone holds before it stops. */ -}}
{{- define "kvstore.drains" -}}
{{- if and .Values.drain.enabled (ne .Values.cell.discovery "none") -}}true{{- end -}}
{{- end -}}

{{- /* The drain, then what the node itself does on SIGTERM, and some more. */ -}}
{{- define "kvstore.leastGrace" -}}
{{- add (ternary (add .Values.drain.timeoutSeconds 5) 0 (eq (include "kvstore.drains" .) "true") | int64) .Values.shutdown.graceSeconds .Values.shutdown.flushSeconds 5 -}}
{{- end -}}

{{- define "kvstore.grace" -}}
{{- .Values.shutdown.terminationGracePeriodSeconds | default (add (include "kvstore.leastGrace" . | int64) 10) -}}
{{- end -}}

{{- define "kvstore.address" -}}
{{- $host := ternary .root.Values.network.listen "127.0.0.1" .root.Values.network.allowInsecure -}}
{{- ternary (printf "[%s]" $host) $host (contains ":" $host) -}}:{{ .port }}
{{- end -}}

{{- define "kvstore.discovery" -}}
{{- if eq .Values.cell.discovery "dns" -}}
dns://{{ include "kvstore.fullname" . }}-cell.{{ .Release.Namespace }}.svc:{{ .Values.network.controlPort }}
{{- else if eq .Values.cell.discovery "etcd" -}}
{{ ternary "etcds" "etcd" .Values.cell.etcd.tls.enabled }}://{{ join "," .Values.cell.etcd.endpoints }}/{{ .Values.cell.etcd.cell | default (printf "%s.%s" .Release.Namespace .Release.Name) }}
{{- else -}}
off
{{- end -}}
{{- end -}}

{{- /* Where engines and tests find a node: by the machine's socket, else by the Service. */ -}}
{{- define "kvstore.target" -}}
{{- if include "kvstore.socketHostPath" . -}}
unix:///run/kvstore/node.sock
{{- else -}}
kv://{{ include "kvstore.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.network.dataPort }}
{{- end -}}
{{- end -}}
