{{/* What all pods have in common. Takes (dict "root" $ "component" "worker"). */}}
{{- define "sowstream.podSpec" -}}
automountServiceAccountToken: false
# A Service named sowstream would put SOWSTREAM_… into the environment, where the settings are read from.
enableServiceLinks: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{/* Where a long-running pod may be placed. Takes the component's values. */}}
{{- define "sowstream.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image, rights, environment and mounts of every container. Takes the root. */}}
{{- define "sowstream.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.containerSecurityContext | nindent 2 }}
{{- if or .Values.kafkaSecret.name .Values.extraEnv }}
env:
  {{- if .Values.kafkaSecret.name }}
  {{- range $property, $key := .Values.kafkaSecret.properties }}
  - name: {{ printf "SOWSTREAM_KAFKA__%s" (upper $property) }}
    valueFrom:
      secretKeyRef:
        name: {{ $.Values.kafkaSecret.name }}
        key: {{ $key }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
volumeMounts:
  - name: config
    mountPath: /etc/sowstream
    readOnly: true
  - name: state
    mountPath: /var/lib/sowstream
  - name: tmp
    mountPath: /tmp
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The volumes behind those mounts; `state` only where no claim gives it. Takes (dict "root" $ "config" NAME "state" BOOL). */}}
{{- define "sowstream.volumes" -}}
- name: config
  configMap:
    name: {{ .config }}
- name: tmp
  emptyDir: {}
{{- if .state }}
- name: state
  emptyDir: {}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
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
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}
