{{/*
Copyright The sweetpoint authors
SPDX-License-Identifier: Apache-2.0

privileged: all functions work on all nodes.

capabilities, the default: only those that the agent uses, with two restrictions. Probes that are
enabled by a trial stay off if the node's kernel requires more (sweetpoint doctor shows them), and
nodes whose LSM forbids BPF in containers must be configured to permit it. Links in pods' network
namespaces (config.network) need SYS_ADMIN, which is hardly safer than privileged.
*/}}
{{- define "sweetpoint.securityContext" -}}
# bcc checks the user id, and cgroup files belong to root.
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if eq .Values.securityProfile "privileged" }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add:
    - BPF # load programs and create maps (kernel/bpf/syscall.c, bpf_capable)
    - PERFMON # tracing programs read kernel memory; counters of all tasks (perfmon_capable)
    - NET_ADMIN # programs at cgroups that count bytes (cgroup_skb); queueing disciplines
    - SYS_RESOURCE # locked memory of maps before Linux 5.11; oom_score_adj of the guardian
    - SYS_PTRACE # core-scheduling cookies, /proc/PID/ns and smaps of foreign tasks
    - SYS_NICE # scheduling of foreign tasks
    - DAC_OVERRIDE # oom_score_adj of best-effort processes, which belong to other users
    - DAC_READ_SEARCH # cgroups and /proc of pods in user namespaces, whose owner is not root
    - KILL # sweetpoint release stops an agent of the same node
    {{- if include "sweetpoint.hostNetwork" . }}
    - SYS_ADMIN # setns into pods' network namespaces (kernel/nsproxy.c)
    {{- end }}
# The runtime's filter permits bpf and perf_event_open with the capabilities above.
seccompProfile:
  type: RuntimeDefault
# The runtime's profile forbids writes below /sys and tracing.
appArmorProfile:
  type: Unconfined
{{- end }}
{{- with .Values.seLinuxOptions }}
# container_t may neither use BPF nor write to cgroups; no effect without SELinux.
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "sweetpoint.mounts" -}}
# Knobs. The container's default mount shows only its own cgroup.
- name: cgroup
  mountPath: /sys/fs/cgroup
# Journal and lock, on a tmpfs: knobs are lost at a reboot as well.
- name: state
  mountPath: /run/sweetpoint
# History and what was learned, on a disk: they outlive a reboot.
- name: data
  mountPath: /var/lib/sweetpoint
{{- if .Values.resctrl.mount }}
# Memory bandwidth and cache ways: groups of tasks, one directory each.
- name: resctrl
  mountPath: /sys/fs/resctrl
{{- end }}
{{- if .Values.nri.mount }}
# The directory and not the socket, which the runtime makes anew when it starts.
- name: nri
  mountPath: /var/run/nri
{{- end }}
# Configuration; profiles are read through the API, so that a change needs no restart.
- name: config
  mountPath: /etc/sweetpoint
  readOnly: true
{{- if .Values.http.tokenSecret }}
# The token that /metrics and /statusz require.
- name: http-token
  mountPath: /etc/sweetpoint-http
  readOnly: true
{{- end }}
# Temporary files of the compiler; the image is read-only.
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "sweetpoint.volumes" -}}
- name: cgroup
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
- name: state
  hostPath:
    path: /run/sweetpoint
    type: DirectoryOrCreate
- name: data
  hostPath:
    path: /var/lib/sweetpoint
    type: DirectoryOrCreate
{{- if .Values.resctrl.mount }}
- name: resctrl
  hostPath:
    path: /sys/fs/resctrl
    type: Directory
{{- end }}
{{- if .Values.nri.mount }}
- name: nri
  hostPath:
    path: /var/run/nri
    type: Directory
{{- end }}
- name: config
  configMap:
    name: {{ include "sweetpoint.name" . }}
{{- with .Values.http.tokenSecret }}
- name: http-token
  secret:
    secretName: {{ . }}
    defaultMode: 0400
    items:
      - key: {{ $.Values.http.tokenKey }}
        path: token
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- end -}}
