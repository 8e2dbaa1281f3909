package fsm

import "testing"

// TestSandboxID_OfAFormerSandboxIsRefused: an id that a conversation or an orphan still names
// belonged to a former sandbox and is not reused.
func TestSandboxID_OfAFormerSandboxIsRefused(t *testing.T) {
	t.Parallel()
	f := raised(t)
	f.conversation("ada", "c1")
	f.do("ada", &SandboxDeleteBody{ID: "sb-c1"})
	f.do("", &SandboxRemoveBody{ID: "sb-c1"})
	f.do("", &OrphanNoteBody{Orphans: []Orphan{
		{Sandbox: "job-left", Kind: OrphanJob, Reason: OrphanUnowned},
		{Sandbox: "workspace-left", Kind: OrphanWorkspace, Reason: OrphanPolicy},
	}})
	spec := f.store.View().Specs()[0]
	f.do("", &SpecPoolBody{ID: spec.ID, Size: 1})
	for _, id := range []string{"sb-c1", "job-left", "workspace-left"} {
		_ = f.fails(CodeConflict, "ada", newSandboxBody(id))
		_ = f.fails(CodeConflict, "", &PoolAddBody{
			ID: id, SpecID: spec.ID, InitRef: SecretRef{
				Path:    "i",
				Version: 1,
			}, KeyRef: SecretRef{Path: "k", Version: 1}, KeyHash: sha(id),
		})
	}
	f.do("ada", &StartTaskCreateBody{ID: "t2", ConversationID: "c2"})
	_ = f.fails(CodeConflict, "", &StartTaskBindBody{ID: "t2", SandboxID: "sb-c1", Create: newSandboxBody("sb-c1")})
	f.do("", &StartTaskBindBody{ID: "t2", SandboxID: "another", Create: newSandboxBody("another")})
	f.do("", &OrphanForgetBody{Kind: OrphanJob, Sandboxes: []string{"job-left"}})
	f.do("ada", newSandboxBody("job-left"))
}

// TestSandboxID_BelowVersion3_AsBefore: logs of older programs apply as they did.
func TestSandboxID_BelowVersion3_AsBefore(t *testing.T) {
	t.Parallel()
	f := newFixture(t).open()
	f.conversation("ada", "c1")
	f.do("ada", &SandboxDeleteBody{ID: "sb-c1"})
	f.do("", &SandboxRemoveBody{ID: "sb-c1"})
	f.do("ada", newSandboxBody("sb-c1"))
}
