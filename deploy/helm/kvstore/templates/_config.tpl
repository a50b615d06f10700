{{- /* The node's settings. JSON's strings, numbers and booleans are TOML's. */ -}}
{{- define "kvstore.config" -}}
{{- $v := .Values -}}
data_address = {{ include "kvstore.address" (dict "root" . "port" $v.network.dataPort) | toJson }}
control_address = {{ include "kvstore.address" (dict "root" . "port" $v.network.controlPort) | toJson }}
http_address = {{ include "kvstore.address" (dict "root" . "port" $v.network.httpPort) | toJson }}
allow_insecure_network = {{ $v.network.allowInsecure }}
socket = "/run/kvstore/node.sock"
socket_mode = {{ $v.socket.mode | toJson }}
data_dir = "/var/lib/kvstore/data"
memory_dir = "/dev/shm"
capacity = {{ printf "%sB" $v.dram.capacity | toJson }}
{{- if $v.nvme.enabled }}
nvme_dir = "/var/lib/kvstore/nvme"
nvme_capacity = {{ printf "%sB" $v.nvme.capacity | toJson }}
{{- end }}
shutdown_grace = {{ printf "%vs" $v.shutdown.graceSeconds | toJson }}
nvme_flush = {{ printf "%vs" $v.shutdown.flushSeconds | toJson }}
discovery = {{ include "kvstore.discovery" . | toJson }}
{{- if eq $v.cell.discovery "etcd" }}
{{- with $v.cell.etcd.tls }}
{{- if and .enabled .secret }}
etcd_ca = {{ printf "/etc/kvstore-etcd/tls/%s" .caKey | toJson }}
{{- if .certKey }}
etcd_cert = {{ printf "/etc/kvstore-etcd/tls/%s" .certKey | toJson }}
etcd_key = {{ printf "/etc/kvstore-etcd/tls/%s" .keyKey | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.cell.etcd.auth }}
{{- if .user }}
etcd_user = {{ .user | toJson }}
etcd_password_file = {{ printf "/etc/kvstore-etcd/auth/%s" .passwordKey | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $value := $v.config }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end -}}
