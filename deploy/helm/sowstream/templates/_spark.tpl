{{/* pipeline.yaml: the user's jobs, and what only the chart knows. */}}
{{- define "sowstream.pipeline" -}}
{{- $name := printf "%s-spark" (include "sowstream.fullname" .) -}}
{{- $conf := dict
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.submit.deployMode" "client"
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.container.image" (include "sowstream.sparkImage" .)
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" (printf "%s-0" $name)
  "spark.kubernetes.executor.podTemplateFile" "/etc/sowstream-spark/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.driver.host" (printf "%s-0.%s.%s.svc" $name $name .Release.Namespace)
  "spark.driver.bindAddress" "0.0.0.0"
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.executor.instances" (toString .Values.spark.executors)
-}}
{{- $ours := dict "settings" "/etc/sowstream/sowstream.yaml" "metrics_port" (int .Values.metricsPort) -}}
{{- $spark := mergeOverwrite (deepCopy .Values.spark.conf) $conf -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.spark.pipeline) $ours (dict "spark" $spark)) -}}
{{- end -}}

{{- define "sowstream.sparkImage" -}}
{{- printf "%s:%s" .Values.spark.image.repository (default .Chart.AppVersion .Values.spark.image.tag) -}}
{{- end -}}

{{/* The pod of an executor, as far as Spark leaves it open: rights, environment and mounts. */}}
{{- define "sowstream.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "sowstream.labels" (dict "root" . "component" "spark-executor") | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with include "sowstream.placement" (dict "root" . "component" "spark-executor" "values" .Values.spark) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: executor
      {{- include "sowstream.sparkContainer" . | nindent 6 }}
      volumeMounts:
        {{- include "sowstream.sparkMounts" . | nindent 8 }}
  volumes:
    {{- include "sowstream.sparkVolumes" . | nindent 4 }}
{{- end -}}

{{/* Image, rights and environment of a driver or an executor. */}}
{{- define "sowstream.sparkContainer" -}}
image: {{ include "sowstream.sparkImage" . | quote }}
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
{{- end -}}

{{/* The root file system is read-only: Spark's scratch files and an executor's working directory need a place. */}}
{{- define "sowstream.sparkMounts" -}}
- {name: scratch, mountPath: /var/lib/sowstream}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sowstream.sparkVolumes" -}}
- name: scratch
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
