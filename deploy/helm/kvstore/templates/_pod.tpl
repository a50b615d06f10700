{{- /* The pod of a node, the same in both modes. */ -}}
{{- define "kvstore.pod" -}}
{{- $v := .Values -}}
{{- $host := include "kvstore.socketHostPath" . -}}
metadata:
  annotations:
    checksum/config: {{ include "kvstore.config" . | sha256sum }}
    {{- with $v.pod.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- with $v.pod.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "kvstore.labels" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "kvstore.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "kvstore.grace" . }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $v.securityContext.user }}
    runAsGroup: {{ $v.securityContext.group }}
    fsGroup: {{ $v.securityContext.group }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with include "kvstore.scheduling" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  {{- if and $v.socket.init (or $host (and $v.nvme.enabled $v.nvme.hostPath)) }}
  initContainers:
    {{- include "kvstore.init" . | nindent 4 }}
  {{- end }}
  containers:
    - name: node
      image: {{ include "kvstore.image" . }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      command: [kvstore]
      args: [node, --config, /etc/kvstore/node.toml]
      env:
        {{- include "kvstore.env" . | nindent 8 }}
      {{- if $v.network.allowInsecure }}
      ports:
        - name: data
          containerPort: {{ $v.network.dataPort }}
          protocol: TCP
        - name: control
          containerPort: {{ $v.network.controlPort }}
          protocol: TCP
        - name: http
          containerPort: {{ $v.network.httpPort }}
          protocol: TCP
      {{- end }}
      startupProbe:
        {{- include "kvstore.probe" (dict "root" . "path" "startupz" "times" $v.probes.startup) | nindent 8 }}
      readinessProbe:
        {{- include "kvstore.probe" (dict "root" . "path" "readyz" "times" $v.probes.readiness) | nindent 8 }}
      livenessProbe:
        {{- include "kvstore.probe" (dict "root" . "path" "livez" "times" $v.probes.liveness) | nindent 8 }}
      {{- if include "kvstore.drains" . }}
      lifecycle:
        preStop:
          exec:
            command:
              {{- include "kvstore.drainCommand" . | nindent 14 }}
      {{- end }}
      resources:
        {{- include "kvstore.resources" . | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if $v.resources.rdma.count }}
          add: [IPC_LOCK]
          {{- end }}
      volumeMounts:
        {{- include "kvstore.mounts" . | nindent 8 }}
  volumes:
    {{- include "kvstore.volumes" . | nindent 4 }}
{{- end -}}

{{- define "kvstore.env" -}}
- name: KVSTORE_TARGET
  value: unix:///run/kvstore/node.sock
- name: KVSTORE_HOST_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if ne .Values.cell.discovery "none" }}
- name: KVSTORE_ADVERTISE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
{{- if .Values.cell.zone }}
- name: KVSTORE_ZONE
  value: {{ .Values.cell.zone | quote }}
{{- else if .Values.cell.zoneFromLabel }}
- name: KVSTORE_ZONE
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ .Values.cell.zoneFromLabel }}']
{{- end }}
{{- end -}}

{{- /* The kubelet cannot reach loopback: a node that listens there alone is asked by a command. */ -}}
{{- define "kvstore.probe" -}}
{{- if .root.Values.network.allowInsecure -}}
httpGet:
  path: /{{ .path }}
  port: http
  scheme: HTTP
{{- else -}}
exec:
  command: [python, -m, kvstore.node.probe, --address, "127.0.0.1:{{ .root.Values.network.httpPort }}", {{ .path }}]
{{- end }}
periodSeconds: {{ .times.periodSeconds }}
failureThreshold: {{ .times.failureThreshold }}
timeoutSeconds: {{ .times.timeoutSeconds }}
{{- end -}}

{{- /* A drain that fails, or has nobody to drain to, must not keep the pod: what stays is in the memory file and on NVMe. */ -}}
{{- define "kvstore.drainCommand" -}}
- /bin/sh
- -c
- |
  log=/proc/1/fd/1; [ -w $log ] || log=/dev/null
  timeout -k 2 {{ add .Values.drain.timeoutSeconds 3 }} kvstore cluster drain --timeout {{ .Values.drain.timeoutSeconds }} >$log 2>&1 ||
    echo "not all was drained; the node stops all the same" >$log
  exit 0
{{- end -}}

{{- define "kvstore.init" -}}
- name: own-directories
  image: {{ include "kvstore.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -ec]
  args:
    - >-
      {{- if include "kvstore.socketHostPath" . }}
      chmod {{ .Values.socket.directoryMode }} /run/kvstore &&
      chown {{ .Values.securityContext.user }}:{{ .Values.securityContext.group }} /run/kvstore &&
      {{- end }}
      {{- if and .Values.nvme.enabled .Values.nvme.hostPath }}
      chmod 0700 /var/lib/kvstore &&
      chown {{ .Values.securityContext.user }}:{{ .Values.securityContext.group }} /var/lib/kvstore &&
      {{- end }}
      true
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
    limits:
      memory: 64Mi
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [CHOWN, FOWNER]
  volumeMounts:
    {{- if include "kvstore.socketHostPath" . }}
    - name: socket
      mountPath: /run/kvstore
    {{- end }}
    {{- if and .Values.nvme.enabled .Values.nvme.hostPath }}
    - name: state
      mountPath: /var/lib/kvstore
    {{- end }}
{{- end -}}

{{- define "kvstore.resources" -}}
{{- $r := .Values.resources -}}
requests:
  cpu: {{ $r.cpu.request | quote }}
  memory: {{ include "kvstore.memoryLimit" . }}
limits:
  {{- if $r.cpu.limit }}
  cpu: {{ $r.cpu.limit | quote }}
  {{- end }}
  memory: {{ include "kvstore.memoryLimit" . }}
  {{- if $r.gpu.count }}
  {{ $r.gpu.resource }}: {{ $r.gpu.count }}
  {{- end }}
  {{- if $r.rdma.count }}
  {{ $r.rdma.resource }}: {{ $r.rdma.count }}
  {{- end }}
{{- end -}}

{{- define "kvstore.mounts" -}}
- name: config
  mountPath: /etc/kvstore
  readOnly: true
- name: socket
  mountPath: /run/kvstore
- name: memory
  mountPath: /dev/shm
- name: state
  mountPath: /var/lib/kvstore
{{- if include "kvstore.etcdSecret" (dict "root" . "of" "tls") }}
- name: etcd-tls
  mountPath: /etc/kvstore-etcd/tls
  readOnly: true
{{- end }}
{{- if include "kvstore.etcdSecret" (dict "root" . "of" "auth") }}
- name: etcd-auth
  mountPath: /etc/kvstore-etcd/auth
  readOnly: true
{{- end }}
{{- end -}}

{{- define "kvstore.etcdSecret" -}}
{{- $etcd := .root.Values.cell.etcd -}}
{{- if eq .root.Values.cell.discovery "etcd" -}}
{{- if eq .of "auth" -}}{{ $etcd.auth.secret }}{{- else if $etcd.tls.enabled -}}{{ $etcd.tls.secret }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvstore.volumes" -}}
- name: config
  configMap:
    name: {{ include "kvstore.fullname" . }}
    defaultMode: 0440
- name: socket
  {{- if include "kvstore.socketHostPath" . }}
  hostPath:
    path: {{ include "kvstore.socketHostPath" . }}
    type: DirectoryOrCreate
  {{- else }}
  emptyDir:
    sizeLimit: 1Mi
  {{- end }}
- name: memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ include "kvstore.memoryVolume" . }}
{{- if not .Values.nvme.enabled }}
- name: state
  emptyDir:
    sizeLimit: 64Mi
{{- else if .Values.nvme.hostPath }}
- name: state
  hostPath:
    path: {{ .Values.nvme.hostPath }}
    type: DirectoryOrCreate
{{- end }}
{{- with include "kvstore.etcdSecret" (dict "root" . "of" "tls") }}
- name: etcd-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with include "kvstore.etcdSecret" (dict "root" . "of" "auth") }}
- name: etcd-auth
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "kvstore.scheduling" -}}
{{- $s := .Values.scheduling -}}
{{- $apart := and (eq .Values.mode "statefulset") (ne $s.antiAffinity "none") -}}
{{- if or $apart $s.affinity }}
affinity:
  {{- with $s.affinity }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $apart }}
  podAntiAffinity:
    {{- if eq $s.antiAffinity "hard" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "kvstore.selector" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "kvstore.selector" . | nindent 14 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if and (eq .Values.mode "statefulset") (ne $s.zoneSpread "none") }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: {{ $s.zoneSpread }}
    labelSelector:
      matchLabels:
        {{- include "kvstore.selector" . | nindent 8 }}
{{- end }}
{{- with $s.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $s.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $s.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $s.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}
