{{/* Labels and annotations of a long-running pod. Takes (dict "root" $ "component" "worker" "values" its values). */}}
{{- define "sowstream.podMetadata" -}}
metadata:
  labels:
    {{- include "sowstream.labels" . | nindent 4 }}
    {{- with .values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "sowstream.config" .root | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What all pods have in common. Takes (dict "root" $ "component" "worker"). */}}
{{- define "sowstream.podSpec" -}}
automountServiceAccountToken: false
# A Service named sowstream would put SOWSTREAM_… into the environment, where the settings are read from.
enableServiceLinks: false
{{- /* The topics job runs before the chart's own account exists. */}}
{{- if not (and .root.Values.serviceAccount.create (eq .component "topics")) }}
{{- with include "sowstream.serviceAccountName" .root }}
serviceAccountName: {{ . }}
{{- end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{/* The account of the pods; empty: the namespace's default. */}}
{{- define "sowstream.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sowstream.fullname" .) .Values.serviceAccountName -}}
{{- else -}}
{{- .Values.serviceAccountName -}}
{{- end -}}
{{- end -}}

{{/* Where a long-running pod may be placed. Takes (dict "root" $ "component" "worker" "values" its values). */}}
{{- define "sowstream.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else if .root.Values.spreadOverNodes }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sowstream.selectorLabels" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* The Secret with a component's Kafka properties; empty: none. Takes (dict "root" $ "values" its values). */}}
{{- define "sowstream.kafkaSecretName" -}}
{{- default .root.Values.kafkaSecret.name .values.kafkaSecretName -}}
{{- end -}}

{{/* The reference of an image: by its digest, if there is one. Takes (dict "root" $ "image" its values). */}}
{{- define "sowstream.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Image, rights and environment of every container.
     Takes (dict "root" $ "values" its values "image" the values of its image). */}}
{{- define "sowstream.program" -}}
{{- $secret := include "sowstream.kafkaSecretName" . -}}
image: {{ include "sowstream.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
# Commands other than workers write their reason to the log alone: `kubectl describe pod` shows its end.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
{{- if or $secret .root.Values.extraEnv }}
env:
  {{- if $secret }}
  {{- range $property, $key := .root.Values.kafkaSecret.properties }}
  - name: {{ printf "SOWSTREAM_KAFKA__%s" (upper $property) }}
    valueFrom:
      secretKeyRef:
        name: {{ $secret }}
        key: {{ $key }}
  {{- end }}
  {{- range $property, $key := .root.Values.kafkaSecret.files }}
  - name: {{ printf "SOWSTREAM_KAFKA__%s" (upper $property) }}
    value: {{ printf "/etc/sowstream-kafka/%s" $key }}
  {{- end }}
  {{- end }}
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .root.Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A container of our own processes: a program with its mounts. Takes (dict "root" $ "values" its values). */}}
{{- define "sowstream.container" -}}
{{ include "sowstream.program" (merge (dict "image" .root.Values.image) .) }}
volumeMounts:
  - name: config
    mountPath: /etc/sowstream
    readOnly: true
  - name: state
    mountPath: /var/lib/sowstream
  - name: tmp
    mountPath: /tmp
  {{- with include "sowstream.sharedMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The mounts that every container has: Kafka's files, and those of the values. Takes (dict "root" $ "values" its values). */}}
{{- define "sowstream.sharedMounts" -}}
{{- if and (include "sowstream.kafkaSecretName" .) .root.Values.kafkaSecret.files }}
- name: kafka
  mountPath: /etc/sowstream-kafka
  readOnly: true
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volumes behind those mounts; `state` only where no claim gives it. Takes
     (dict "root" $ "values" its values "config" NAME "state" BOOL). */}}
{{- define "sowstream.volumes" -}}
- name: config
  configMap:
    name: {{ .config }}
- name: tmp
  {{- include "sowstream.emptyDir" .root.Values.emptyDirs.tmp | nindent 2 }}
{{- if .state }}
- name: state
  {{- include "sowstream.emptyDir" .root.Values.emptyDirs.state | nindent 2 }}
{{- end }}
{{- include "sowstream.sharedVolumes" . }}
{{- end -}}

{{/* The volumes behind the mounts that every container has. Takes (dict "root" $ "values" its values). */}}
{{- define "sowstream.sharedVolumes" -}}
{{- $secret := include "sowstream.kafkaSecretName" . }}
{{- if and $secret .root.Values.kafkaSecret.files }}
- name: kafka
  secret:
    secretName: {{ $secret }}
    # The process is not root: it reads the files as a member of the pod's fsGroup.
    defaultMode: 0440
    items:
      {{- range $key := .root.Values.kafkaSecret.files | values | sortAlpha | uniq }}
      - {key: {{ $key }}, path: {{ $key }}}
      {{- end }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A directory of the pod's own. Takes its greatest size; empty: the node's. */}}
{{- define "sowstream.emptyDir" -}}
{{- if . -}}
emptyDir: {sizeLimit: {{ . }}}
{{- else -}}
emptyDir: {}
{{- end -}}
{{- end -}}

{{/* Ports and probes of a process that serves metrics and health pages. A restart mends a dead process alone, so Kafka's
     absence fails no liveness probe. No traffic comes through a Service: readiness is what rollouts and disruption
     budgets wait for, and it lasts from the end of the restores to the signal to stop. */}}
{{- define "sowstream.probes" -}}
ports:
  - name: metrics
    containerPort: {{ .Values.metricsPort }}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
  # After a minute without an answer an orderly stop is unlikely.
  terminationGracePeriodSeconds: 10
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}
