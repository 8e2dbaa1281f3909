package httpapi

import (
	_ "embed"
	"net/http"

	"bivouac.dev/bivouac/httpapi/response"
)

// description is the API's OpenAPI 3 document. TestDescription_IsGenerated makes it of the routes,
// their handlers and openapi.yaml; ops/e2e/apifuzz checks every node's responses against it.
//
//go:generate go test -count=1 -run ^TestDescription_IsGenerated$ -update .
//go:embed openapi.json
var description []byte

// Description returns a copy of the OpenAPI document that GET /openapi.json serves. ops/e2e/apifuzz
// generates its requests from it.
func Description() []byte { return append([]byte(nil), description...) }

// serveDescription handles GET /openapi.json, which upstream does not have.
func (s *Server) serveDescription(w http.ResponseWriter, _ *http.Request) {
	response.WriteJSON(w, http.StatusOK, description)
}
