package agentserver

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/requestid"
)

// success is the response of calls without a result.
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
	_, _ = w.Write(b) // the client may have left
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, map[string]string{"detail": detail})
}

func writeInvalid(w http.ResponseWriter, errs []decode.Problem) {
	writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"detail": errs})
}

// failed responds 500 with an id, the request's if it has one. The log has the reason, which may
// contain paths, under the same id.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	id := r.Header.Get(requestid.Header)
	if !requestid.Valid(id) {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
		id = hex.EncodeToString(raw[:])
	}
	s.logger.Error("request failed", "route", r.Method+" "+r.URL.Path, "request", id, "error", err)
	writeJSON(w, http.StatusInternalServerError, map[string]string{
		"detail": "Internal Server Error", "exception": "InternalError", "error_id": id,
	})
}

// readObject reads a JSON object from the body. If it returns false it has responded with the
// error.
func readObject(w http.ResponseWriter, r *http.Request) (decode.Object, bool) {
	v, ok := readValue(w, r)
	if !ok {
		return decode.Object{}, false
	}
	m, isMap := v.(map[string]any)
	if !isMap {
		f := decode.KindObject.Fault()
		writeInvalid(w, []decode.Problem{{Type: f.Type, Loc: []string{"body"}, Msg: f.Message}})
		return decode.Object{}, false
	}
	return decode.Object{Members: m, Loc: []string{"body"}, Problems: &decode.Problems{}}, true
}

// refused responds 422 if o has problems, and reports whether it did.
func refused(w http.ResponseWriter, o decode.Object) bool {
	if o.Problems.Err() == nil {
		return false
	}
	writeInvalid(w, o.Problems.List)
	return true
}

// readValue reads one JSON value from the body. Numbers stay json.Number.
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
		writeInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body"}, Msg: "Field required"}})
	default:
		// The error's text may quote the body, so only the offset is returned.
		writeInvalid(w, []decode.Problem{{Type: "json_invalid", Loc: []string{"body", strconv.FormatInt(d.InputOffset(), 10)},
			Msg: "JSON decode error", Ctx: map[string]any{"error": "Invalid JSON"}}})
	}
	return nil, false
}
