{{- /* Values that contradict each other, each with what to do. The schema has looked at each value alone. */ -}}
{{- define "kvstore.validate" -}}
{{- $v := .Values -}}
{{- $host := include "kvstore.socketHostPath" . -}}
{{- $pool := eq $v.mode "statefulset" -}}
{{- $bad := list -}}
{{- if and (ne $v.cell.discovery "none") (not $v.network.allowInsecure) -}}
{{- $bad = append $bad (printf "cell.discovery=%s needs a network between the nodes, and there is no transport security yet: set network.allowInsecure=true if all who reach the pods may read and write all blocks (networkPolicy says who does), or cell.discovery=none" $v.cell.discovery) -}}
{{- end -}}
{{- if and $pool (not $v.network.allowInsecure) (not $host) -}}
{{- $bad = append $bad "nobody could reach this pool: set network.allowInsecure=true, or mode=daemonset for a cache that engines of the same machine use by its unix socket" -}}
{{- end -}}
{{- if and $pool (gt (int $v.replicas) 1) (eq $v.cell.discovery "none") -}}
{{- $bad = append $bad (printf "replicas=%v with cell.discovery=none are nodes that do not know each other: set cell.discovery to dns or etcd, or replicas=1" $v.replicas) -}}
{{- end -}}
{{- if and $pool $host (gt (int $v.replicas) 1) (ne $v.scheduling.antiAffinity "hard") -}}
{{- $bad = append $bad "two nodes on one machine cannot share the socket in socket.hostPath: set scheduling.antiAffinity=hard, or socket.hostPath=none" -}}
{{- end -}}
{{- if and $v.nvme.enabled $pool $v.nvme.hostPath -}}
{{- $bad = append $bad "nvme.hostPath is of a daemonset; a statefulset makes claims: leave it empty, and use a storage class of local volumes" -}}
{{- end -}}
{{- if and $v.nvme.enabled (not $pool) (not $v.nvme.hostPath) -}}
{{- $bad = append $bad "nvme.enabled in a daemonset needs nvme.hostPath, a directory of each machine's local disk" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.network.allowInsecure) -}}
{{- $bad = append $bad "metrics.serviceMonitor.enabled needs network.allowInsecure=true: nodes listen on loopback alone without it" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.monitoring) -}}
{{- $bad = append $bad "metrics.serviceMonitor.enabled, and networkPolicy lets nobody scrape: say in networkPolicy.monitoring where Prometheus runs" -}}
{{- end -}}
{{- if and (eq $v.cell.discovery "etcd") (not $v.cell.etcd.endpoints) -}}
{{- $bad = append $bad "cell.discovery=etcd needs cell.etcd.endpoints" -}}
{{- end -}}
{{- if ne (empty $v.cell.etcd.tls.certKey) (empty $v.cell.etcd.tls.keyKey) -}}
{{- $bad = append $bad "cell.etcd.tls.certKey and keyKey go together: set both, or neither" -}}
{{- end -}}
{{- if and $v.cell.etcd.tls.certKey (not $v.cell.etcd.tls.secret) -}}
{{- $bad = append $bad "cell.etcd.tls.certKey needs cell.etcd.tls.secret, which holds the certificate" -}}
{{- end -}}
{{- if ne (empty $v.cell.etcd.auth.user) (empty $v.cell.etcd.auth.secret) -}}
{{- $bad = append $bad "cell.etcd.auth.user and cell.etcd.auth.secret go together: set both, or neither" -}}
{{- end -}}
{{- if and $v.cell.zone $v.cell.zoneFromLabel -}}
{{- $bad = append $bad "cell.zone and cell.zoneFromLabel both say the zone: set one of them" -}}
{{- end -}}
{{- $ports := uniq (list (int $v.network.dataPort) (int $v.network.controlPort) (int $v.network.httpPort)) -}}
{{- if lt (len $ports) 3 -}}
{{- $bad = append $bad "network.dataPort, controlPort and httpPort must differ" -}}
{{- end -}}
{{- $pdb := $v.podDisruptionBudget -}}
{{- if and $pdb.enabled (eq (eq (toString $pdb.maxUnavailable) "") (eq (toString $pdb.minAvailable) "")) -}}
{{- $bad = append $bad "podDisruptionBudget takes one of maxUnavailable and minAvailable: set one and leave the other empty" -}}
{{- end -}}
{{- $grace := int $v.shutdown.terminationGracePeriodSeconds -}}
{{- if and $grace (lt $grace (include "kvstore.leastGrace" . | int)) -}}
{{- $bad = append $bad (printf "shutdown.terminationGracePeriodSeconds=%d is too short for drain, graceSeconds and flushSeconds: at least %s, or 0" $grace (include "kvstore.leastGrace" .)) -}}
{{- end -}}
{{- if and $v.vllmExample.enabled (not $host) (not $v.network.allowInsecure) -}}
{{- $bad = append $bad "vllmExample could not reach a node: set network.allowInsecure=true, or a socket.hostPath" -}}
{{- end -}}
{{- if $bad -}}
{{- fail (printf "\nthe values contradict each other:\n- %s\n" (join "\n- " $bad)) -}}
{{- end -}}
{{- end -}}
