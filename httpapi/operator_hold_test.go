package httpapi

import (
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestHold_IsShownAndReleased(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	h.do(h.root, "POST", pathOperator+"/hold/release", `{}`).want(t, 409)
	cluster := h.cluster.store.View().ClusterID()
	birth := fsm.Birth{Cluster: cluster, Nonce: "lost", Index: 9}.String()
	h.apply("",
		&fsm.HoldBeginBody{
			Findings: []fsm.Finding{
				{Kind: fsm.FindingStranger, Store: fsm.StoreNomad, ID: "sb1", Birth: birth, Detail: "a job"},
			},
		})
	h.apply("", &fsm.OrphanNoteBody{Orphans: []fsm.Orphan{
		{Sandbox: "sb1", Kind: fsm.OrphanJob, Reason: fsm.OrphanStranger, Birth: birth},
		{Sandbox: "sb2", Kind: fsm.OrphanWorkspace, Reason: fsm.OrphanStranger},
	}})
	if got := h.do("", "GET", "/ready", "").want(t, 200).header.Get("X-Bivouac-Hold"); got != "true" {
		t.Errorf("X-Bivouac-Hold: %q", got)
	}
	var report struct {
		Hold         *struct{ Index uint64 }
		AfterRelease *struct {
			RemoveJobs       []string `json:"remove_jobs"`
			RemoveWorkspaces []any    `json:"remove_workspaces"`
		} `json:"after_release"`
	}
	h.do(h.root, "GET", pathOperator+"/hold", "").want(t, 200).json(t, &report)
	if report.Hold == nil || len(report.AfterRelease.RemoveJobs) != 1 || len(report.AfterRelease.RemoveWorkspaces) != 0 {
		t.Fatalf("%+v, %+v", report.Hold, report.AfterRelease)
	}
	h.do(h.root, "POST", pathOperator+"/hold/release", `{"index":1}`).want(t, 409)
	h.do(h.root, "POST", pathOperator+"/hold/release", `{}`).want(t, 200)
	v := h.cluster.store.View()
	if b, _ := fsm.ParseBirth(birth); v.Hold() != nil || !v.Contains(b) {
		t.Errorf("hold %+v, adopted %t", v.Hold(), v.Contains(b))
	}
	h.do(h.root, "DELETE", pathOperator+"/orphans/workspace/sb2", "").want(t, 200)
	h.do(h.root, "DELETE", pathOperator+"/orphans/workspace/sb3", "").want(t, 404)
	h.do(h.root, "DELETE", pathOperator+"/orphans/node/sb3", "").want(t, 404)
	if !h.cluster.store.View().Orphan(fsm.OrphanWorkspace, "sb2").Delete {
		t.Error("the orphan is not to be deleted")
	}
	h.do(h.alice, "GET", pathOperator+"/hold", "").want(t, 403)
}
