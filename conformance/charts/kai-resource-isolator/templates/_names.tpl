{{- define "labels" -}}
app.kubernetes.io/name: kai-resource-isolator
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "pod" -}}
metadata:
  labels:
    {{- include "labels" . | nindent 4 }}
    kai-resource-isolator.io/webhook: ignore
{{- end }}
