package llm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// recent is how long ago a leader was heard if there is one.
const recent = 5 * time.Second

// grant is a request's permission to use the gateway for a conversation.
type grant struct {
	claim llmtoken.Claim
	row   *fsm.Sandbox
	// endpoint is where the conversation goes. settings are its user's, nil for none.
	endpoint fsm.ModelEndpoint
	settings *fsm.Settings
	policy   fsm.LLM
	view     *fsm.View
}

// authorise checks a token. Every bad one gets the same refusal.
func (g *Gateway) authorise(ctx context.Context, token string) (*grant, error) {
	claim, ok := llmtoken.Parse(token)
	if !ok {
		return nil, errToken()
	}
	return g.fresh(ctx, func(v *fsm.View) (*grant, error) { return g.grantIn(ctx, v, claim) })
}

// fresh judges a request by the cluster's state, or by this node's own while no leader can be asked,
// so that an election stops no agent.
func (g *Gateway) fresh(ctx context.Context, judge func(*fsm.View) (*grant, error)) (*grant, error) {
	heard := time.Since(g.server.Cluster.Status().LastContact)
	if heard > g.cfg.MaxStale {
		return nil, refuse(http.StatusServiceUnavailable, reasonFailed, "this node has not heard from a leader for %s",
			heard.Round(time.Second))
	}
	own, err := g.server.Cluster.View(ctx, cluster.Stale)
	if err != nil {
		return nil, err
	}
	first, err := judge(own)
	// A bad token costs the cluster a read only within the limits on unknown keys.
	if isToken(err) && !g.server.AskCluster(ctx) || err != nil && !isToken(err) || heard > recent {
		return first, err
	}
	asked, cancel := context.WithTimeout(ctx, proxy.ConfirmPatience)
	defer cancel()
	v, readErr := g.server.Cluster.View(asked, cluster.Linearizable)
	if readErr != nil || v.Index() == own.Index() {
		return first, err
	}
	return judge(v)
}

func isToken(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusUnauthorized
}

// grantIn checks a claim against one view.
func (g *Gateway) grantIn(ctx context.Context, v *fsm.View, claim llmtoken.Claim) (*grant, error) {
	row := v.SandboxAny(claim.Sandbox)
	if !proxy.IsOwned(row) || v.LockedOut(row.UserID, time.Now()) {
		return nil, errToken()
	}
	key, err := g.server.Secret(ctx, row.KeyRef, fsm.MemberKey)
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound: // the sandbox gets another key, or is being deleted
		return nil, errToken()
	case err != nil:
		return nil, err
	}
	settings := v.Settings(row.UserID)
	endpoint, known := conversationIn(v, row, settings, claim.Conversation)
	if !claim.Valid(key, row) || !known {
		return nil, errToken()
	}
	return &grant{
		claim: claim, row: row, endpoint: endpoint, settings: settings, policy: v.Installation().LLM, view: v,
	}, nil
}

// conversationIn returns where a conversation goes that runs, or is being started, in a sandbox.
func conversationIn(
	v *fsm.View, row *fsm.Sandbox, settings *fsm.Settings, id string,
) (e fsm.ModelEndpoint, known bool) {
	if c := v.Conversation(row.UserID, id); c != nil && c.SandboxID == row.ID {
		return settings.EndpointOf(c.LLM, c.LLMModel), true
	}
	if t := v.StartTaskByConversation(row.UserID, id); t != nil && t.SandboxID == row.ID && !t.Done() {
		return settings.EndpointOf(t.LLM, t.Request.LLMModel), true
	}
	return fsm.ModelEndpoint{}, false
}

// stands reports whether the grant of a request in progress still holds, as far as this node knows.
func (g *Gateway) stands(gr *grant) bool {
	v, err := g.server.Cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		return true
	}
	row := v.SandboxAny(gr.row.ID)
	return row != nil && row.Generation == gr.row.Generation && row.Desired == fsm.DesiredRunning &&
		!v.LockedOut(row.UserID, time.Now())
}

// serveToken gives an agent server a token for one of its conversations. It authenticates with its
// sandbox's own key.
func (g *Gateway) serveToken(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return refuse(http.StatusMethodNotAllowed, reasonBody, "use POST")
	}
	key := r.Header.Get(proxy.HeaderKey)
	if key == "" {
		return errToken()
	}
	granted, err := g.fresh(r.Context(), func(v *fsm.View) (*grant, error) {
		row := v.SandboxByKeyHash(apikey.Hash(key))
		// The look-up by hash finds a candidate; Opens compares.
		if !proxy.Opens(row, key) || !proxy.IsOwned(row) || row.Desired != fsm.DesiredRunning ||
			v.LockedOut(row.UserID, time.Now()) {
			return nil, errToken()
		}
		return &grant{row: row, view: v}, nil
	})
	if err != nil {
		return err
	}
	note := g.server.Info(r.Context())
	note.User, note.Sandbox = granted.row.UserID, granted.row.ID
	if err := g.server.Admitted(r.Context(), granted.row.ID); err != nil {
		return err
	}
	var in struct {
		Conversation string `json:"conversation_id"`
	}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTokenBody)).Decode(&in) != nil {
		return refuse(http.StatusBadRequest, reasonBody, `the body must be {"conversation_id": "..."}`)
	}
	id := strings.ReplaceAll(strings.ToLower(in.Conversation), "-", "")
	if !conversationID.MatchString(id) {
		return errToken()
	}
	if _, known := conversationIn(granted.view, granted.row, granted.settings, id); !known {
		return refuse(http.StatusNotFound, reasonToken, "the sandbox has no such conversation")
	}
	body, err := response.Encode(map[string]string{"token": llmtoken.New(key, granted.row, id)})
	if err != nil {
		return err
	}
	response.WriteJSON(w, http.StatusOK, body)
	return nil
}

// maxTokenBody bounds the request for a token, in bytes.
const maxTokenBody = 4 << 10

var conversationID = regexp.MustCompile(`^[0-9a-f]{32}$`)
