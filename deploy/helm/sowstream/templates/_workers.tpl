{{/* The StatefulSets of workers, as JSON: component → values. `worker` runs the topics that no group has; it is left out
     where there are groups and no topic is left. A group's values stand before those of `worker`. */}}
{{- define "sowstream.workers" -}}
{{- $all := concat (keys (.Values.config.topics | default dict)) (keys (.Values.config.processors | default dict)) | sortAlpha -}}
{{- $workers := dict -}}
{{- $grouped := list -}}
{{- range $name, $group := .Values.workerGroups -}}
{{- range $topic := $group.topics -}}
{{- if not (has $topic $all) }}{{ fail (printf "workerGroups.%s.topics: config has no topic %s" $name $topic) }}{{ end -}}
{{- if has $topic $grouped }}{{ fail (printf "workerGroups.%s.topics: another group has %s, too" $name $topic) }}{{ end -}}
{{- $grouped = append $grouped $topic -}}
{{- end -}}
{{- $_ := set $workers (printf "worker-%s" $name) (mergeOverwrite (deepCopy $.Values.worker) $group) -}}
{{- end -}}
{{- if not .Values.workerGroups -}}
{{- if $all }}{{ $_ := set $workers "worker" .Values.worker }}{{ end -}}
{{- else -}}
{{- $rest := list -}}
{{- range $topic := default $all .Values.worker.topics -}}
{{- if not (has $topic $grouped) }}{{ $rest = append $rest $topic }}{{ end -}}
{{- end -}}
{{- if $rest }}{{ $_ := set $workers "worker" (mergeOverwrite (deepCopy .Values.worker) (dict "topics" $rest)) }}{{ end -}}
{{- end -}}
{{- toJson $workers -}}
{{- end -}}

{{/* The components that run, as JSON: component → values. */}}
{{- define "sowstream.components" -}}
{{- $components := include "sowstream.workers" . | fromJson -}}
{{- if .Values.config.conflated }}{{ $_ := set $components "conflate" .Values.conflate }}{{ end -}}
{{- if .Values.config.views }}{{ $_ := set $components "view" .Values.view }}{{ end -}}
{{- if .Values.gateway.enabled }}{{ $_ := set $components "gateway" .Values.gateway }}{{ end -}}
{{- toJson $components -}}
{{- end -}}
