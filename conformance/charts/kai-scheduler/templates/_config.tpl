{{- define "image" -}}
{name: {{ .name }}, pullPolicy: IfNotPresent, repository: {{ .global.registry }}, tag: {{ .global.tag }}}
{{- end }}

{{- define "service" -}}
service: {enabled: true, image: {{ include "image" . }}}
{{- end }}

{{- /* The Config that the last hook applies; as in KAI, a value of the wrong type is only seen then. */ -}}
{{- define "config" -}}
{{- $global := .Values.global -}}
apiVersion: kai.scheduler/v1
kind: Config
metadata:
  name: kai-config
spec:
  namespace: {{ .Release.Namespace }}
  admission:
    gpuSharing: {{ toJson $global.gpuSharing }}
    gpuFractionRuntimeClassName: {{ .Values.admission.gpuFractionRuntimeClassName }}
    {{ include "service" (dict "name" "admission" "global" $global) }}
    webhook: {metricsPort: 8080, port: 443, probePort: 8081, targetPort: 9443}
  binder:
    metricsPort: 8080
    plugins:
      hamicore:
        enabled: {{ toJson .Values.binder.plugins.hamicore.enabled }}
    resourceReservation:
      namespace: kai-resource-reservation
      serviceAccountName: kai-resource-reservation
      appLabel: kai-resource-reservation
      image: {{ include "image" (dict "name" "resourcereservation" "global" $global) }}
    {{ include "service" (dict "name" "binder" "global" $global) }}
  {{- range $part, $image := dict "podGrouper" "podgrouper" "podGroupController" "podgroupcontroller" "queueController" "queuecontroller" "scheduler" "scheduler" }}
  {{ $part }}:
    {{ include "service" (dict "name" $image "global" $global) }}
  {{- end }}
{{- end }}
