{{- define "pointsman.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "pointsman" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-pointsman" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of everything in the chart. Call with (list $ "operator"), and a map of more labels if there are. Ours win. */}}
{{- define "pointsman.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "pointsman.selector" . | fromYaml -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63) -}}
{{- $_ := set $labels "app.kubernetes.io/version" ($root.Chart.AppVersion | replace "+" "_" | trunc 63) -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "pointsman" -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (merge $labels (slice . 2 | first | default dict) ($root.Values.commonLabels | default dict)) -}}
{{- end -}}

{{/* Labels that select the pods of one component. Call with (list $ "operator"). */}}
{{- define "pointsman.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: pointsman
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Selects the pods that control the workers of services: operator and planner. */}}
{{- define "pointsman.controllerPods" -}}
matchLabels:
  app.kubernetes.io/name: pointsman
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [operator, planner]}
{{- end -}}

{{/* Ingress of operator and planner. No peers is nobody: an empty "from" would be everybody. */}}
{{- define "pointsman.metricsIngress" -}}
{{- with .Values.networkPolicy.metricsFrom -}}
ingress:
  - from: {{- toYaml . | nindent 6 }}
    ports:
      - {protocol: TCP, port: 8080}
{{- else -}}
ingress: []
{{- end }}
{{- end -}}

{{/* Name of the ServiceAccount of a component. Call with (list $ "operator"). */}}
{{- define "pointsman.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- $account.name | default (printf "%s-%s" (include "pointsman.fullname" $root) (index . 1)) -}}
{{- end -}}

{{/* "true" if the chart makes Roles, ClusterRoles and their bindings. */}}
{{- define "pointsman.rbac" -}}
{{- dig "create" true .Values.rbac | ternary "true" "" -}}
{{- end -}}

{{/*
Image of one of ours. Call with (list $ "operator"). No registry is the default: whoever owns its name could serve code to all who
install without one. A tag has no "+".
*/}}
{{- define "pointsman.image" -}}
{{- $root := index . 0 -}}
{{- $images := $root.Values.images -}}
{{- with index $images (index . 1) -}}
{{- . -}}
{{- else -}}
{{- if not $images.registry -}}
{{- fail "images.registry is not set: set it to the registry and path that hold Pointsman's images, e.g. registry.example.com/pointsman" -}}
{{- end -}}
{{- printf "%s/%s:%s" (trimSuffix "/" $images.registry) (index . 1) ($images.tag | default $root.Chart.AppVersion | replace "+" "_") -}}
{{- end -}}
{{- end -}}

{{- define "pointsman.natsSecret" -}}
{{- .Values.nats.auth.existingSecret | default (printf "%s-nats" (include "pointsman.fullname" .)) -}}
{{- end -}}

{{/* Where the key of the services' own logins is; the chart's NATS server alone takes them. */}}
{{- define "pointsman.natsServicesSecret" -}}
{{- .Values.nats.auth.existingSecret | default (printf "%s-nats-services" (include "pointsman.fullname" .)) -}}
{{- end -}}

{{/*
Data of the Secrets of NATS as {"login": …, "services": …}: what is there, and what is missing newly made, once for all
templates. In an installation that had services before they had logins of their own, their pods have the shared one.
*/}}
{{- define "pointsman.natsSecrets" -}}
{{- if not (hasKey .Values.nats "secrets") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "pointsman.natsSecret" .) | default dict -}}
{{- $login := get $found "data" | default dict | deepCopy -}}
{{- $found = lookup "v1" "Secret" .Release.Namespace (include "pointsman.natsServicesSecret" .) | default dict -}}
{{- $services := get $found "data" | default dict | deepCopy -}}
{{- if not .Values.nats.auth.existingSecret -}}
{{- if not $services -}}
{{- $_ := set $services "nats-service-key" (randAlphaNum 40 | b64enc) -}}
{{- $_ := set $services "nats-earlier-versions" (ternary "accepted" "refused" (not (empty $login)) | b64enc) -}}
{{- end -}}
{{- if not $login -}}
{{- $login = dict "nats-user" ("pointsman" | b64enc) "nats-password" (randAlphaNum 40 | b64enc) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values.nats "secrets" (dict "login" $login "services" $services) -}}
{{- end -}}
{{- toJson .Values.nats.secrets -}}
{{- end -}}

{{/* Environment of what runs beside the NATS server in its pod. */}}
{{- define "pointsman.natsServerEnvironment" -}}
{{- $services := include "pointsman.natsServicesSecret" . -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POINTSMAN_BIND_HOST
  value: {{ .Values.bindHost | quote }}
- name: POINTSMAN_NATS_USER
  valueFrom: {secretKeyRef: {name: {{ include "pointsman.natsSecret" . }}, key: nats-user}}
- name: POINTSMAN_NATS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "pointsman.natsSecret" . }}, key: nats-password}}
- name: POINTSMAN_NATS_SERVICE_KEY
  valueFrom: {secretKeyRef: {name: {{ $services }}, key: nats-service-key, optional: true}}
- name: POINTSMAN_NATS_PREVIOUS_SERVICE_KEY
  valueFrom: {secretKeyRef: {name: {{ $services }}, key: nats-previous-service-key, optional: true}}
- name: POINTSMAN_NATS_EARLIER_VERSIONS
  valueFrom: {secretKeyRef: {name: {{ $services }}, key: nats-earlier-versions, optional: true}}
- name: HOME
  value: /tmp
{{- end -}}

{{/* Spec of the claim for NATS's volume. */}}
{{- define "pointsman.natsClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.nats.persistence.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.nats.persistence.size }}
{{- end -}}

{{- define "pointsman.natsUrl" -}}
{{- if .Values.nats.url -}}
{{- .Values.nats.url -}}
{{- else if .Values.nats.enabled -}}
nats://{{ include "pointsman.fullname" . }}-nats.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{- fail "nats.enabled is false and nats.url is empty: set nats.url to the server to use, e.g. nats://nats.nats.svc:4222" -}}
{{- end -}}
{{- end -}}

{{/* A key without a value is left out, so that null in any parent's values drops a user of the chart's. */}}
{{- define "pointsman.podSecurityContext" -}}
{{- $context := dict -}}
{{- range $key, $value := .Values.podSecurityContext }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $context $key $value }}
{{- end }}
{{- end }}
{{- toYaml $context -}}
{{- end -}}

{{- define "pointsman.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where a pod of ours runs. Call with the component's values. */}}
{{- define "pointsman.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "pointsman.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* How often a PodMonitor scrapes. Call with monitoring.podMonitors. */}}
{{- define "pointsman.scraping" -}}
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A Kubernetes quantity as NATS writes sizes: 256Mi -> 256MiB. */}}
{{- define "pointsman.natsSize" -}}
{{- printf "%sB" . | quote -}}
{{- end -}}

{{/* Annotations of what runs before the chart is deleted. */}}
{{- define "pointsman.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
