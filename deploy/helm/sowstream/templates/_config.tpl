{{/* sowstream.yaml: the user's settings, and what only the chart knows. */}}
{{- define "sowstream.config" -}}
{{- include "sowstream.refuseSecrets" (dict "properties" .Values.config.kafka "place" "config.kafka" "remedy" (include "sowstream.kafkaSecretRemedy" .)) -}}
{{- $variable := "name that: extraEnv: [{name: SOWSTREAM_SCHEMA_REGISTRY__%s, valueFrom: {secretKeyRef: {name: SECRET, key: KEY}}}]" -}}
{{- include "sowstream.refuseSecrets" (dict "properties" (.Values.config.schema_registry | default dict) "place" "config.schema_registry" "remedy" $variable) -}}
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

{{/* Stop at a property that has a secret, by its name or as an address with a password: it would lie open in a ConfigMap.
     `${env.NAME}` and the name of a key in AWS are none. Takes (dict "properties" … "place" … "remedy" …), where %s in the
     remedy is the property's name. */}}
{{- define "sowstream.refuseSecrets" -}}
{{- $words := "(?i)(passw|passphrase|secret|token|credential|user\\.info|jaas|authorization|(account|private|encryption)[._-]?key|key\\.pem$|keystore\\.key$|oauthbearer\\.config)" -}}
{{- $harmless := "(?i)(secretKeyRef|tokenSecret|\\.secrets\\.|provider|binding|token\\.file|(enabled|\\.source|\\.url|\\.location|[._-]file|key\\.id|client\\.id)$)" -}}
{{- range $name, $value := .properties -}}
{{- $isNamed := and (regexMatch $words $name) (not (regexMatch $harmless $name)) (not (regexMatch "^([$]{env[.]\\w+}|arn:.*)$" (toString $value))) -}}
{{- if or $isNamed (regexMatch "//[^/\\s@]*:\\S*@" (toString $value)) -}}
{{- fail (printf "%s: %s is a secret, which would lie open in a ConfigMap. Create a Secret with it, and %s" $.place $name ($.remedy | replace "%s" $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sowstream.kafkaSecretRemedy" -}}
name that: kafkaSecret: {name: SECRET, properties: {%s: KEY}}
{{- end -}}
