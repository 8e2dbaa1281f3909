package httpapi

import (
	_ "embed"
	"net/http"
)

// description is the API as OpenAPI 3 has it. A test holds it to the route
// table, and ops/apiwalk holds every node's answers to it.
//
//go:embed openapi.json
var description []byte

// Description gives the API's OpenAPI document, as GET /openapi.json serves it.
// The walker of ops/apiwalk makes its requests from it.
func Description() []byte { return append([]byte(nil), description...) }

// serveDescription handles GET /openapi.json, an extension of ours.
func (s *Server) serveDescription(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, description)
}
