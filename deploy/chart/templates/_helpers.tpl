{{/*
Copyright The sweetpoint authors
SPDX-License-Identifier: Apache-2.0
*/}}

{{- define "sweetpoint.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sweetpoint.selector" -}}
app.kubernetes.io/name: sweetpoint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sweetpoint.labels" -}}
{{ include "sweetpoint.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: node-agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The controller of a rollout has a name of its own: the agents' selectors must not match it. */}}
{{- define "sweetpoint.rolloutSelector" -}}
app.kubernetes.io/name: sweetpoint-rollout
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sweetpoint.rolloutLabels" -}}
{{ include "sweetpoint.rolloutSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: controller
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sweetpoint.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Shaping of links needs the devices in the host's network namespace. */}}
{{- define "sweetpoint.hostNetwork" -}}
{{- if .Values.config.network -}}true{{- end -}}
{{- end -}}

{{- define "sweetpoint.user" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "sweetpoint.name" .) -}}
{{- end -}}

{{/*
A section that is in the configuration, also with `enabled: false`: what a run with the feature left
on the node can still be removed after it was switched off.
*/}}
{{- define "sweetpoint.evicts" -}}
{{- if hasKey (.Values.config.kubernetes | default dict) "eviction" -}}true{{- end -}}
{{- end -}}
{{- define "sweetpoint.offersCapacity" -}}
{{- if hasKey (.Values.config.kubernetes | default dict) "capacity" -}}true{{- end -}}
{{- end -}}

{{/* Conflicting values, which fail before anything is installed. */}}
{{- define "sweetpoint.check" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is not set, and no registry has an image of sweetpoint: build it with deploy/Dockerfile, push it to your registry or load it into each node, and set image.repository to its name (docs/KUBERNETES.md, Quick start)" -}}
{{- end -}}
{{- $http := .Values.http -}}
{{- $loopback := has $http.host (list "127.0.0.1" "[::1]") -}}
{{- if include "sweetpoint.hostNetwork" . -}}
{{- if not (or $loopback $http.tokenSecret) -}}
{{- fail "config.network puts the agent on the host's network, where every client that reaches the node could read /metrics: set http.tokenSecret, or http.host to 127.0.0.1" -}}
{{- end -}}
{{- else if $loopback -}}
{{- fail "http.host is a loopback address of the pod, where neither kubelet nor Prometheus reaches it" -}}
{{- else if not (or $http.tokenSecret .Values.networkPolicy.enabled $http.unprotected) -}}
{{- fail "every pod of the cluster could read /metrics and /statusz: set http.tokenSecret or networkPolicy.enabled, or permit it with http.unprotected" -}}
{{- end -}}
{{- if .Values.rollout.enabled -}}
{{- if not .Values.rollout.spec -}}
{{- fail "rollout.enabled needs rollout.spec: the candidate, the profile that it replaces, and the canary nodes" -}}
{{- end -}}
{{- if not (has (dig "kubernetes" "profiles" "namespace" "auto" .Values.config) (list "auto" .Release.Namespace)) -}}
{{- fail "rollout.enabled needs the profiles in the namespace of the release: leave out config.kubernetes.profiles.namespace" -}}
{{- end -}}
{{- end -}}
{{- $bounds := .Files.Get "files/bounds.json" | fromJson -}}
{{- range $bounds.quantities -}}
{{- include "sweetpoint.checkQuantity" (dict "at" $.Values "path" .path "name" "" "is" . "units" (get $bounds.units .kind)) -}}
{{- end -}}
{{- end -}}

{{/*
A quantity with a unit must be within its bounds, which the schema cannot say. Its form was checked
by the schema. "at" is the value from which "path" leads on to the quantity; * is each entry.
*/}}
{{- define "sweetpoint.checkQuantity" -}}
{{- if empty .path -}}
  {{- $text := toString .at | nospace -}}
  {{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
  {{- $unit := trimPrefix $number $text -}}
  {{- if and $number (hasKey .units $unit) -}}
    {{- $value := mulf (float64 $number) (get .units $unit) -}}
    {{- if or (lt $value (float64 .is.least)) (gt $value (float64 .is.most)) -}}
      {{- fail (printf "%s: %v must be between %s and %s" (trimPrefix "." .name) .at .is.from .is.to) -}}
    {{- end -}}
  {{- end -}}
{{- else -}}
  {{- $key := first .path -}}
  {{- $on := omit . "at" "path" "name" -}}
  {{- if eq $key "*" -}}
    {{- if or (kindIs "map" .at) (kindIs "slice" .at) -}}
      {{- range $each, $value := .at -}}
        {{- include "sweetpoint.checkQuantity" (merge (dict "at" $value "path" (rest $.path) "name" (printf "%s.%v" $.name $each)) $on) -}}
      {{- end -}}
    {{- end -}}
  {{- else if kindIs "map" .at -}}
    {{- if hasKey .at $key -}}
      {{- include "sweetpoint.checkQuantity" (merge (dict "at" (get .at $key) "path" (rest .path) "name" (printf "%s.%s" .name $key)) $on) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/*
The agent's configuration as JSON, which is also YAML: Helm holds all numbers as floats and writes
1000000 as 1e+06 in YAML.
*/}}
{{- define "sweetpoint.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $kubernetes := $config.kubernetes | default dict -}}
{{- $profiles := $kubernetes.profiles | default dict -}}
{{- $_ := set $profiles "config_map" ($profiles.config_map | default (printf "%s-profiles" (include "sweetpoint.name" .))) -}}
{{- $_ := set $kubernetes "profiles" $profiles -}}
{{- $_ := set $config "kubernetes" $kubernetes -}}
{{- $_ := set $config "mode" .Values.mode -}}
{{- $_ := set $config "http" (printf "%s:%d" .Values.http.host (int .Values.http.port)) -}}
{{- if .Values.http.tokenSecret -}}
{{- $_ := set $config "http_token_file" "/etc/sweetpoint-http/token" -}}
{{- end -}}
{{- toPrettyJson $config -}}
{{- end -}}

{{/*
An HTTP probe. kubelet connects to the address of the pod, with hostNetwork of the host. Under a
flood of connections an answer took 1.3 s, longer than the default of Kubernetes allows.
*/}}
{{- define "sweetpoint.probe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
  port: http
  {{- if include "sweetpoint.hostNetwork" $root | and (has $root.Values.http.host (list "127.0.0.1" "[::1]")) }}
  host: {{ trimAll "[]" $root.Values.http.host | quote }}
  {{- end }}
timeoutSeconds: 5
{{- end -}}

{{/* The resources that the agent may remove, independent of the ones that it publishes now. */}}
{{- define "sweetpoint.allResources" -}}
['sweetpoint.dev/cpu', 'sweetpoint.dev/memory', 'kubernetes.io/batch-cpu', 'kubernetes.io/batch-memory', 'resource.katalyst.kubewharf.io/reclaimed_millicpu', 'resource.katalyst.kubewharf.io/reclaimed_memory']
{{- end -}}

{{/* The resources that the agent may publish, as a CEL list. */}}
{{- define "sweetpoint.resources" -}}
{{- $names := dict
  "sweetpoint" "['sweetpoint.dev/cpu', 'sweetpoint.dev/memory']"
  "koordinator" "['kubernetes.io/batch-cpu', 'kubernetes.io/batch-memory']"
  "katalyst" "['resource.katalyst.kubewharf.io/reclaimed_millicpu', 'resource.katalyst.kubewharf.io/reclaimed_memory']"
-}}
{{- $capacity := dig "kubernetes" "capacity" dict .Values.config | default dict -}}
{{- if $capacity.enabled }}{{ get $names ($capacity.names | default "sweetpoint") }}{{ else }}[]{{ end -}}
{{- end -}}
