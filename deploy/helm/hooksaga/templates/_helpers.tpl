{{- define "hooksaga.labels" -}}
app.kubernetes.io/name: hooksaga
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hooksaga.selector" -}}
app.kubernetes.io/name: hooksaga
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hooksaga.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "hooksaga.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hooksaga.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "hooksaga.environment" -}}
- {name: HOOKSAGA_LISTEN, value: "0.0.0.0:8080"}
- {name: HOOKSAGA_METRICS_LISTEN, value: "0.0.0.0:9090"}
{{- with .Values.publicUrl }}
- {name: HOOKSAGA_PUBLIC_URL, value: {{ . | quote }}}
{{- end }}
{{- if .Values.database.secret }}
- {name: HOOKSAGA_DATABASE_URL_FILE, value: /run/secrets/hooksaga/database_url}
- {name: HOOKSAGA_SECRET_KEY_FILE, value: /run/secrets/hooksaga/secret_key}
- {name: HOOKSAGA_ROOT_KEY_FILE, value: /run/secrets/hooksaga/root_key}
- {name: HOOKSAGA_API_KEY_FILE, value: /run/secrets/hooksaga/root_key}
{{- else }}
- {name: HOOKSAGA_API_KEY_FILE, value: /data/root.key}
- {name: HOOKSAGA_DATABASE_URL, value: "sqlite:///data/hooksaga.db"}
{{- end }}
{{- range $name, $value := .Values.config }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "hooksaga.pod" -}}
metadata:
  labels: {{- include "hooksaga.labels" . | nindent 4 }}
  annotations:
    {{- if not .Values.serviceMonitor }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9090"
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # Kubernetes would set variables that begin with the name of the Service: for one called hooksaga they look like settings.
  enableServiceLinks: false
  # Time for deliveries in flight to finish.
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext: {{- include "hooksaga.podSecurity" . | nindent 4 }}
  containers:
    - name: hooksaga
      image: {{ include "hooksaga.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env: {{- include "hooksaga.environment" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: metrics, containerPort: 9090}
      # The probes use the metrics port, which is plain HTTP even if HOOKSAGA_TLS_CERT makes the other port HTTPS.
      startupProbe:
        httpGet: {path: /healthz, port: metrics}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: metrics}
        periodSeconds: 10
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 2
        timeoutSeconds: 4
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext: {{- include "hooksaga.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- if .Values.database.secret }}
        - {name: secrets, mountPath: /run/secrets/hooksaga, readOnly: true}
        {{- else }}
        - {name: data, mountPath: /data}
        {{- end }}
  {{- if .Values.database.secret }}
  volumes:
    - name: secrets
      secret: {secretName: {{ .Values.database.secret }}, defaultMode: 0440}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
