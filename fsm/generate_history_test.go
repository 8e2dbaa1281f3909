package fsm

import (
	"fmt"
	"time"

	"pgregory.net/rapid"
)

// genHistoryBody is genBody for the history, holds and orphans.
func genHistoryBody(t *rapid.T, c CommandType) (string, Body) {
	kind := oneOf(OrphanJob, OrphanWorkspace)
	switch c {
	case MarkNote:
		return "", &MarkNoteBody{
			Store:   oneOf(StoreNomad, StoreVault).Draw(t, "store"),
			History: oneOf("a23569cc57f667a1", "another").Draw(t, "history"),
			Index:   rapid.Uint64Range(0, 40).Draw(t, "index"),
		}
	case BackupNote:
		if rapid.Bool().Draw(t, "failed") {
			return "", &BackupNoteBody{Node: "n2", Failure: "no room"}
		}
		return "", &BackupNoteBody{File: "b.snap", Node: "n1", Index: 3, Size: 9}
	case HoldBegin:
		return "", &HoldBeginBody{At: rapid.Uint64Range(0, 60).Draw(t, "at"), Findings: []Finding{
			{Kind: FindingStranger, Store: StoreNomad, ID: genSandbox().Draw(t, "sandbox"), Detail: "seen"},
		}}
	case HoldRelease:
		return "", &HoldReleaseBody{Adopt: []Adopted{{
			Nonce: oneOf("n1", "n2").Draw(t, "nonce"), Index: rapid.Uint64Range(0, 60).Draw(t, "index"),
		}}}
	case RemovalReserve:
		return "", &RemovalReserveBody{
			Kind: oneOf(RemovalJob, RemovalSecret).Draw(t, "kind"),
			Want: rapid.IntRange(0, 9).Draw(t, "want"), Limit: rapid.IntRange(0, 9).Draw(t, "limit"),
		}
	case OrphanNote:
		return "", &OrphanNoteBody{Orphans: []Orphan{{
			Kind: kind.Draw(t, "kind"), Sandbox: genSandbox().Draw(t, "sandbox"),
			Reason: oneOf(OrphanUnowned, OrphanPolicy, OrphanStranger).Draw(t, "reason"),
		}}}
	case OrphanRestore:
		id := genSandbox().Draw(t, "restored")
		return "", &OrphanRestoreBody{
			Volume:  oneOf("v1", "v2").Draw(t, "volume"),
			ID:      id,
			KeyRef:  SecretRef{Path: SandboxKeyPath(id), Version: 1},
			KeyHash: sha(id),
		}
	case OrphanDelete:
		if rapid.IntRange(0, 3).Draw(t, "of lost") == 0 {
			return "", &OrphanDeleteBody{Kind: OrphanLost, Sandbox: "v1"}
		}
		return "", &OrphanDeleteBody{Kind: kind.Draw(t, "kind"), Sandbox: genSandbox().Draw(t, "sandbox")}
	case OrphanForget:
		if rapid.IntRange(0, 3).Draw(t, "of lost") == 0 {
			return "", &OrphanForgetBody{Kind: OrphanLost, Sandboxes: []string{"v1"}}
		}
		return "", &OrphanForgetBody{Kind: kind.Draw(t, "kind"), Sandboxes: []string{genSandbox().Draw(t, "sandbox")}}
	case SandboxAdopt:
		return "", &SandboxAdoptBody{
			ID:         genSandbox().Draw(t, "sandbox"),
			Generation: rapid.Uint64Range(1, 4).Draw(t, "generation"),
		}
	case SandboxAcceptWorkspace:
		b := &SandboxAcceptWorkspaceBody{ID: genSandbox().Draw(t, "sandbox"), Operator: rapid.Bool().Draw(t, "operator")}
		return genUser().Draw(t, "accepting"), b
	case SandboxShare, SandboxUnshare, SandboxRedeem, SandboxRotateKey:
		return genPageBody(t, c)
	case SessionCreate, SessionOffer, SessionRedeem, SessionEnd, SessionSeen:
		return genSessionBody(t, c)
	case DeviceAsk, DeviceAllow, DeviceRedeem:
		return genDeviceBody(t, c)
	case OwnKeyCreate:
		lookup := oneOf("k1", "k2", "k3", "k4").Draw(t, "own lookup")
		return genUser().Draw(t, "whose own"), &OwnKeyCreateBody{Lookup: lookup, Hash: sha(lookup)}
	case OwnKeyRevoke:
		return genUser().Draw(t, "whose own"), &OwnKeyRevokeBody{ID: rapid.IntRange(0, 4).Draw(t, "key")}
	case APIKeyEnable:
		return "", &APIKeyEnableBody{ID: rapid.IntRange(0, 4).Draw(t, "key")}
	case APIKeyDisable:
		return "", &APIKeyDisableBody{ID: rapid.IntRange(0, 4).Draw(t, "key")}
	case APIKeyUsed:
		return "", &APIKeyUsedBody{Uses: []APIKeyUse{{ID: rapid.IntRange(0, 4).Draw(t, "key"), At: testEpoch}}}
	case LLMReported:
		used := ModelUsage{
			Requests:     rapid.Int64Range(0, 3).Draw(t, "requests"),
			Cost:         rapid.Int64Range(0, maxUsage).Draw(t, "cost"),
			Milliseconds: rapid.Int64Range(0, 9).Draw(t, "ms"),
		}
		return "", &LLMReportBody{
			Entries: []LLMReport{
				{
					UserID:         genUser().Draw(t, "whose"),
					ConversationID: genConv().Draw(t, "conversation"),
					Model:          oneOf("", "m1", "m2").Draw(t, "model"),
					Usage:          used,
				},
			},
		}
	case UserDisable:
		return "", &UserDisableBody{UserID: genUser().Draw(t, "whom")}
	case UserDelete:
		return "", &UserDeleteBody{UserID: genUser().Draw(t, "whom")}
	case UserEnable:
		return "", &UserEnableBody{UserID: genUser().Draw(t, "whom")}
	case CertificateRevoke:
		print := oneOf("", "a", "b", "c").Draw(t, "certificate")
		if print != "" {
			print = sha(print)
		}
		return "", &CertificateRevokeBody{Fingerprint: print, Node: oneOf("n1", "n2").Draw(t, "node")}
	case CertificateAllow:
		return "", &CertificateAllowBody{Node: oneOf("n1", "n2").Draw(t, "node")}
	case ClientMarkSet:
		return "", &ClientMarkBody{
			ID:   oneOf("client-1", "client-2").Draw(t, "client"),
			Mark: oneOf("", ClientDraining, ClientLost).Draw(t, "mark"),
		}
	case ClientDrain:
		b := &ClientDrainBody{ID: oneOf("client-1", "client-2").Draw(t, "client"), Since: time.Unix(0, 0).UTC()}
		if rapid.Bool().Draw(t, "first") {
			b.First = "sb-c1"
		} else {
			b.Sandbox, b.Failure = oneOf("sb-c1", "sb-c2").Draw(t, "sandbox"), "no room"
		}
		return "", b
	case SandboxCopied, SandboxMove, SandboxMoved:
		return "", genMoveBody(t, c)
	case SettingsPatch, ProfilePut, ProfileDelete, ProfileRename, ProfileActivate, CustomSecretPut,
		CustomSecretUpdate, CustomSecretDelete:
		return genProfileBody(t, c)
	default:
		panic(fmt.Sprintf("no generator for %s", c))
	}
}
