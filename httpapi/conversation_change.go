package httpapi

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// The members of a conversation that PATCH can change.
const (
	memberTitle      = "title"
	memberPublic     = "public"
	memberRepository = "selected_repository"
	memberBranch     = "selected_branch"
	memberProvider   = "git_provider"
)

// maxTitle limits a conversation's title, in characters.
const maxTitle = 200

// handleConversationUpdate handles PATCH /api/v1/app-conversations/{conversation_id}. It changes
// the members that were sent; null clears one (API.md, "Conversations: change").
func (s *Server) handleConversationUpdate(c *call) (response.Response, error) {
	id := c.conversationID()
	body := readConversationUpdate(c.Object())
	body.ID = id
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return response.Response{}, err
	}
	res, err := c.Propose(body)
	if err != nil {
		return response.Response{}, response.NotFoundAs(err, "unknown_app_conversation")
	}
	if res.Conversation == nil {
		return response.Response{}, request.ErrEmptyResult(fsm.ConversationUpdate)
	}
	v, err := c.After()
	if err != nil {
		return response.Response{}, err
	}
	b := s.newConversationBodies(c, v, []*fsm.Conversation{res.Conversation})[0]
	b.SubConversationIDs = wire.OrEmpty(v.SubConversations(c.Caller.User, id))
	return response.OK(b)
}

func readConversationUpdate(o decode.Object) *fsm.ConversationUpdateBody {
	body := &fsm.ConversationUpdateBody{
		Title:              o.Title(memberTitle, maxTitle),
		Public:             o.Boolean(memberPublic),
		SelectedRepository: o.Repository(memberRepository, fsm.MaxPath),
		SelectedBranch:     o.Address(memberBranch, fsm.MaxPath),
		GitProvider:        (*fsm.ProviderType)(o.Enum(memberProvider, git.Providers())),
	}
	for _, name := range []string{memberTitle, memberPublic, memberRepository, memberBranch, memberProvider} {
		if o.Has(name) {
			body.Set = append(body.Set, name)
		}
	}
	if r := body.SelectedRepository; r != nil && !isRepository(*r) {
		o.Rule(memberRepository, "must be owner/repo, without characters that mean something to a shell")
	}
	if b := body.SelectedBranch; b != nil && !isBranch(*b) {
		o.Rule(memberBranch, "is not the name of a branch")
	}
	// An absent repository stays as it is; Apply then checks the combination.
	cleared := slices.Contains(body.Set, memberRepository) && o.Value(memberRepository) == nil
	if cleared && (body.SelectedBranch != nil || body.GitProvider != nil) {
		o.Rule(memberRepository, "a branch and a git provider need a repository")
	}
	return body
}

// repositoryPattern is owner/repo. Owners at GitLab and Azure have several parts.
var repositoryPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$`)

// isRepository reports whether a text may name a repository. It excludes shell metacharacters and
// path traversal.
func isRepository(s string) bool {
	return repositoryPattern.MatchString(s) && !slices.ContainsFunc(strings.Split(s, "/"), func(part string) bool {
		return strings.Trim(part, ".") == "" || strings.HasPrefix(part, "-")
	})
}

// branchPattern is what git allows, without shell metacharacters.
var branchPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+@#=-]*$`)

// isBranch reports whether a text may name a branch (git check-ref-format).
func isBranch(s string) bool {
	return branchPattern.MatchString(s) && !strings.Contains(s, "..") && !strings.Contains(s, "//") &&
		!strings.Contains(s, "/.") && !strings.HasSuffix(s, "/") && !strings.HasSuffix(s, ".") &&
		!strings.HasSuffix(s, ".lock")
}

// handleConversationDelete handles DELETE /api/v1/app-conversations/{conversation_id}. It also
// deletes sub-conversations and start tasks. A sandbox without other conversations is deleted as
// well, so its agent server need not be called.
func (s *Server) handleConversationDelete(c *call) (response.Response, error) {
	id, fine := decode.ParseUUID(c.Params.ByName("conversation_id"))
	if !fine {
		return response.Response{}, response.Error(http.StatusBadRequest, "Invalid conversation ID format")
	}
	if _, err := c.Propose(&fsm.ConversationDeleteBody{ID: id, DeleteSandbox: true}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Conversation not found")
	}
	return response.OK(wire.Success{Success: true})
}
