package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// modelServerTime bounds the question to one server of models.
const modelServerTime = 5 * time.Second

// examineModels asks the servers that the configuration names (llm { servers }), from this machine and
// without a key: any answer shows that the way is open and the certificate trusted.
func examineModels(ctx context.Context, servers []fsm.ModelServer) (found []finding) {
	for _, s := range servers {
		text, err := askModelServer(ctx, s)
		result := checkOK
		if err != nil { // nodes may reach it
			result, text = checkWarn, "from this machine: "+oneLine(err)
		}
		found = append(found, finding{result, "llm.servers " + s.Host, text})
	}
	return found
}

func askModelServer(ctx context.Context, s fsm.ModelServer) (string, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return "", fmt.Errorf("the system's certificates: %w", err)
	}
	pool.AppendCertsFromPEM([]byte(s.CA))
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	defer t.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, modelServerTime)
	defer cancel()
	ask := func(scheme string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+s.Host+"/v1/models", nil)
		if err != nil {
			return 0, err
		}
		for name, value := range s.Headers {
			req.Header.Set(name, value)
		}
		res, err := t.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		res.Body.Close()
		return res.StatusCode, nil
	}
	status, err := ask("https")
	if err == nil {
		return fmt.Sprintf("answers (%d)", status), nil
	}
	if !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") &&
		!strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		return "", err
	}
	if status, err = ask("http"); err != nil {
		return "", err
	}
	return fmt.Sprintf("answers (%d) without TLS", status), nil
}
