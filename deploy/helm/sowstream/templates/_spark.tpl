{{/* pipeline.yaml: the user's jobs, and what only the chart knows. The cipher of the connections is Spark's default: with
     AES/GCM/NoPadding the executors of Spark 4.0.0 never hear from their driver (SPARK-56227). */}}
{{- define "sowstream.pipeline" -}}
{{- $kafkaRemedy := include "sowstream.kafkaSecretRemedy" . -}}
{{- include "sowstream.refuseSecrets" (dict "properties" (.Values.spark.pipeline.kafka | default dict) "place" "spark.pipeline.kafka" "remedy" $kafkaRemedy) -}}
{{- range $name, $job := .Values.spark.pipeline.jobs -}}
{{- include "sowstream.refuseSecrets" (dict "properties" ($job.kafka | default dict) "place" (printf "spark.pipeline.jobs.%s.kafka" $name) "remedy" $kafkaRemedy) -}}
{{- end -}}
{{- $variable := "name that in extraEnv, as a variable that spark.hadoop.… takes as ${env.NAME}, or in extraVolumes" -}}
{{- include "sowstream.refuseSecrets" (dict "properties" .Values.spark.conf "place" "spark.conf" "remedy" $variable) -}}
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
  "spark.blockManager.port" "7079"
  "spark.authenticate" "true"
  "spark.authenticate.secret.file" "/etc/sowstream-spark-auth/secret"
  "spark.network.crypto.enabled" "true"
  "spark.network.crypto.authEngineVersion" "2"
  "spark.network.crypto.saslFallback" "false"
  "spark.io.encryption.enabled" "true"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.executor.instances" (toString .Values.spark.executors)
-}}
{{- if not (include "sowstream.sparkClaims" .) -}}
{{- $conf = merge $conf (dict
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.driver.reusePersistentVolumeClaim" "false") -}}
{{- end -}}
{{- $ours := dict "settings" "/etc/sowstream/sowstream.yaml" "metrics_port" (int .Values.metricsPort) -}}
{{- $spark := mergeOverwrite (deepCopy .Values.spark.conf) $conf -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.spark.pipeline) $ours (dict "spark" $spark)) -}}
{{- end -}}

{{- define "sowstream.sparkImage" -}}
{{- include "sowstream.image" (dict "root" . "image" .Values.spark.image) -}}
{{- end -}}

{{/* Whether Spark makes claims for its executors; empty: it does not. */}}
{{- define "sowstream.sparkClaims" -}}
{{- range $name, $value := .Values.spark.conf -}}
{{- if hasPrefix "spark.kubernetes.executor.volumes.persistentVolumeClaim." $name }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* The pod of an executor, as far as Spark leaves it open: rights, environment and mounts. */}}
{{- define "sowstream.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "sowstream.labels" (dict "root" . "component" "spark-executor") | nindent 4 }}
    {{- with .Values.spark.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # An account without rights, and without a token.
  serviceAccountName: {{ include "sowstream.fullname" . }}-spark-executor
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
{{- include "sowstream.program" (dict "root" . "values" .Values.spark "image" .Values.spark.image) -}}
{{- end -}}

{{/* The root file system is read-only: Spark's scratch files and an executor's working directory need a place. */}}
{{- define "sowstream.sparkMounts" -}}
- {name: scratch, mountPath: /var/lib/sowstream}
- {name: tmp, mountPath: /tmp}
- {name: spark-auth, mountPath: /etc/sowstream-spark-auth, readOnly: true}
{{- include "sowstream.sharedMounts" (dict "root" . "values" .Values.spark) }}
{{- end -}}

{{- define "sowstream.sparkVolumes" -}}
- name: scratch
  {{- include "sowstream.emptyDir" .Values.emptyDirs.state | nindent 2 }}
- name: tmp
  {{- include "sowstream.emptyDir" .Values.emptyDirs.tmp | nindent 2 }}
- name: spark-auth
  secret:
    secretName: {{ .Values.spark.authSecret.name }}
    # The process is not root: it reads the file as a member of the pod's fsGroup.
    defaultMode: 0440
    items:
      - {key: {{ .Values.spark.authSecret.key }}, path: secret}
{{- include "sowstream.sharedVolumes" (dict "root" . "values" .Values.spark) }}
{{- end -}}
