package agentserver

import (
	"net/http"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/scheduler/agent"
)

// writeProof answers a challenge with a proof for each key, so that the caller need not show its key
// to find out who answers here.
func writeProof(w http.ResponseWriter, r *http.Request, keys []string) {
	body := agent.ProofBody{Proofs: []string{}}
	for _, key := range keys {
		proof, ok := agent.ProofOf(key, r.URL.Query().Get("nonce"))
		if !ok {
			wire.WriteDetail(w, http.StatusBadRequest, "nonce must be 64 hex digits")
			return
		}
		body.Proofs = append(body.Proofs, proof)
	}
	wire.WriteJSON(w, http.StatusOK, body)
}

// handleProof handles GET /proof, which needs no key.
func (s *Server) handleProof(w http.ResponseWriter, r *http.Request) { writeProof(w, r, s.cfg.Keys) }
