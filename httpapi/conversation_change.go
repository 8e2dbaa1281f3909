package httpapi

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// The members of a conversation that PATCH changes.
const (
	memberTitle      = "title"
	memberPublic     = "public"
	memberRepository = "selected_repository"
	memberBranch     = "selected_branch"
	memberProvider   = "git_provider"
)

// maxTitle bounds a conversation's title, in characters.
const maxTitle = 200

// handleConversationUpdate handles PATCH
// /api/v1/app-conversations/{conversation_id}: only the members that were sent
// change, and null clears them (api-contract.md B.2).
func (s *Server) handleConversationUpdate(c *call) (answer, error) {
	id := c.conversationID()
	body := readConversationUpdate(c.object())
	body.ID = id
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if err := body.Validate(); err != nil {
		return answer{}, err
	}
	res, err := c.propose(body)
	if err != nil {
		return answer{}, notFoundAs(err, "unknown_app_conversation")
	}
	if res.Conversation == nil {
		return answer{}, errEmptyResult(fsm.ConversationUpdate)
	}
	v, err := c.after()
	if err != nil {
		return answer{}, err
	}
	b := s.newConversationBodies(c, v, []*fsm.Conversation{res.Conversation})[0]
	b.SubConversationIDs = orEmpty(v.SubConversations(c.who.user, id))
	return ok(b)
}

// readConversationUpdate reads the body of a PATCH.
func readConversationUpdate(o object) *fsm.ConversationUpdateBody {
	body := &fsm.ConversationUpdateBody{
		Title:              o.text(memberTitle, maxTitle),
		Public:             o.boolean(memberPublic),
		SelectedRepository: o.text(memberRepository, maxSetting),
		SelectedBranch:     o.text(memberBranch, maxSetting),
		GitProvider:        (*fsm.ProviderType)(o.enum(memberProvider, providerNames())),
	}
	for _, name := range []string{memberTitle, memberPublic, memberRepository, memberBranch, memberProvider} {
		if o.has(name) {
			body.Set = append(body.Set, name)
		}
	}
	if r := body.SelectedRepository; r != nil && !isRepository(*r) {
		o.rule(memberRepository, "must be owner/repo, without characters that mean something to a shell")
	}
	if b := body.SelectedBranch; b != nil && !isBranch(*b) {
		o.rule(memberBranch, "is not the name of a branch")
	}
	// Not sent at all means that it stays, and then Apply has the last word.
	cleared := slices.Contains(body.Set, memberRepository) && o.value(memberRepository) == nil
	if cleared && (body.SelectedBranch != nil || body.GitProvider != nil) {
		o.rule(memberRepository, "a branch and a git provider need a repository")
	}
	return body
}

// repositoryPattern is owner/repo; GitLab's and Azure's owners have parts.
var repositoryPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$`)

// isRepository reports whether a text may name a repository: what it may not
// hold would mean something to a shell, or lead out of a directory.
func isRepository(s string) bool {
	return repositoryPattern.MatchString(s) && !slices.ContainsFunc(strings.Split(s, "/"), func(part string) bool {
		return strings.Trim(part, ".") == "" || strings.HasPrefix(part, "-")
	})
}

// branchPattern holds what git allows, less what a shell would read.
var branchPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+@#=-]*$`)

// isBranch reports whether a text may name a branch (git check-ref-format).
func isBranch(s string) bool {
	return branchPattern.MatchString(s) && !strings.Contains(s, "..") && !strings.Contains(s, "//") &&
		!strings.Contains(s, "/.") && !strings.HasSuffix(s, "/") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// handleConversationDelete handles DELETE
// /api/v1/app-conversations/{conversation_id}, with its sub-conversations and
// start tasks. A sandbox nothing else uses goes too, as a whole and afterwards:
// its agent server has nothing to be asked for.
func (s *Server) handleConversationDelete(c *call) (answer, error) {
	id, fine := parseUUID(c.params.ByName("conversation_id"))
	if !fine {
		return answer{}, refuse(http.StatusBadRequest, "Invalid conversation ID format")
	}
	if _, err := c.propose(&fsm.ConversationDeleteBody{ID: id, DeleteSandbox: true}); err != nil {
		return answer{}, notFoundAs(err, "Conversation not found")
	}
	return ok(success{Success: true})
}
