{{/* sowstream.yaml: the user's settings, and what only the chart knows. */}}
{{- define "sowstream.config" -}}
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
