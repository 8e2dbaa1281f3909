package agentserver

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
)

// fieldError is one entry of a 422 (api-contract.md A.0.4). Input echoes only
// plain values of members that can't hold a secret; otherwise it is null.
type fieldError struct {
	Type  string         `json:"type"`
	Loc   []string       `json:"loc"`
	Msg   string         `json:"msg"`
	Input any            `json:"input"`
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// success is the agent server's answer to calls that give nothing back.
type success struct {
	Success bool `json:"success"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client is gone: nobody to tell
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, map[string]string{"detail": detail})
}

func writeInvalid(w http.ResponseWriter, errs []fieldError) {
	writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"detail": errs})
}

// failed answers 500 with an id that is also in the log; the reason is only
// there, because it names paths.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	id := hex.EncodeToString(raw[:])
	s.logger.Error("request failed", "route", r.Method+" "+r.URL.Path, "request", id, "error", err)
	writeJSON(w, http.StatusInternalServerError, map[string]string{
		"detail": "Internal Server Error", "exception": "InternalError", "error_id": id,
	})
}

// readObject reads a JSON object from the body. When it answers nil it has
// written the error.
func readObject(w http.ResponseWriter, r *http.Request) map[string]any {
	v, ok := readValue(w, r)
	if !ok {
		return nil
	}
	m, isMap := v.(map[string]any)
	if !isMap {
		writeInvalid(w, []fieldError{{Type: "model_attributes_type", Loc: []string{"body"},
			Msg: "Input should be a valid dictionary or object to extract fields from"}})
		return nil
	}
	return m
}

// readValue reads one JSON value from the body; numbers stay json.Number.
func readValue(w http.ResponseWriter, r *http.Request) (any, bool) {
	d := json.NewDecoder(r.Body)
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = errors.New("extra data after the document")
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return v, true
	case errors.As(err, &tooLarge):
		writeDetail(w, http.StatusRequestEntityTooLarge, "Request body is too large")
	case errors.Is(err, io.EOF):
		writeInvalid(w, []fieldError{{Type: "missing", Loc: []string{"body"}, Msg: "Field required"}})
	default:
		// The error's text may quote the body; the offset is enough.
		writeInvalid(w, []fieldError{{Type: "json_invalid", Loc: []string{"body", strconv.FormatInt(d.InputOffset(), 10)},
			Msg: "JSON decode error", Ctx: map[string]any{"error": "Invalid JSON"}}})
	}
	return nil, false
}
