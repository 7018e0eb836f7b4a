{{/* sowstream.yaml: the user's settings, and what only the chart knows. */}}
{{- define "sowstream.config" -}}
{{- include "sowstream.refuseSecrets" (dict "kafka" .Values.config.kafka "place" "config.kafka") -}}
{{- $ours := dict "state_dir" "/var/lib/sowstream" "runtime" (dict "metrics_port" (int .Values.metricsPort)) -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $ours) -}}
{{- end -}}

{{/* How long a pod is given to end: the process's own deadline, then 10 seconds for what Kubernetes does about it.
     Kubernetes must not be the first to lose patience, as the open transaction would then have to time out. */}}
{{- define "sowstream.gracePeriodSeconds" -}}
{{- $text := toString (dig "runtime" "shutdown_timeout_s" 20 .Values.config) -}}
{{- $unit := regexFind "[a-z]+$" $text -}}
{{- $perUnit := dict "" 1.0 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- if not (hasKey $perUnit $unit) -}}
{{- fail (printf "config.runtime.shutdown_timeout_s: %q is not an interval; write 500ms, 5s, 1m or 1h" $text) -}}
{{- end -}}
{{- add 10 (ceil (mulf (float64 (trimSuffix $unit $text | trim)) (get $perUnit $unit))) -}}
{{- end -}}

{{/* Stop at a Kafka property whose value is a secret: it would lie open in a ConfigMap. */}}
{{- define "sowstream.refuseSecrets" -}}
{{- range $name, $_ := .kafka -}}
{{- if regexMatch "(password|passphrase|secret|jaas|key\\.pem$|keystore\\.key$|sasl\\.oauthbearer\\.config)" $name -}}
{{- fail (printf "%s: %s is a secret, which would lie open in a ConfigMap. Create a Secret with it, and name that: kafkaSecret: {name: SECRET, properties: {%s: KEY}}" $.place $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
