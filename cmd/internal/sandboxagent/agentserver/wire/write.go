// Package wire reads the requests of the agent server's API and writes its responses: JSON bodies, the
// errors in them, and what several routes read alike. It knows no route.
package wire

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/requestid"
)

// Success is the response of calls without a result.
type Success struct {
	Success bool `json:"success"`
}

// WriteJSON responds with a value.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may have left
}

// WriteDetail responds with an error that says what is wrong.
func WriteDetail(w http.ResponseWriter, status int, detail string) {
	WriteJSON(w, status, map[string]string{"detail": detail})
}

// WriteInvalid responds 422 with what is wrong in which member.
func WriteInvalid(w http.ResponseWriter, errs []decode.Problem) {
	WriteJSON(w, http.StatusUnprocessableEntity, map[string]any{"detail": errs})
}

// WriteFailure responds 500 with an id, the request's if it has one. The log has the reason, which may
// contain paths, under the same id.
func WriteFailure(w http.ResponseWriter, r *http.Request, logger *slog.Logger, err error) {
	id := r.Header.Get(requestid.Header)
	if !requestid.Valid(id) {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		id = hex.EncodeToString(raw[:])
	}
	logger.Error("request failed", "route", r.Method+" "+r.URL.Path, "request", id, "error", err)
	WriteJSON(w, http.StatusInternalServerError, map[string]string{
		"detail": "Internal Server Error", "exception": "InternalError", "error_id": id,
	})
}

// downloadTime is how long a client may take to read an archive.
const downloadTime = 30 * time.Minute

// BeginDownload gives the client of a response enough time to read an archive.
func BeginDownload(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTime)) // a test's recorder has none
}
