package fsm

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// The generators draw from small sets of names, so that commands affect the same rows.
func oneOf(names ...string) *rapid.Generator[string] { return rapid.SampledFrom(names) }

func genUser() *rapid.Generator[string]    { return oneOf("ada", "bob") }
func genSandbox() *rapid.Generator[string] { return oneOf("s1", "s2", "s3", "s4", "s5", "m1", "m2") }
func genMember() *rapid.Generator[string]  { return oneOf("m1", "m2", "m3", "s3") }
func genTask() *rapid.Generator[string]    { return oneOf("t1", "t2", "t3", "t4", "t5", "t6") }
func genConv() *rapid.Generator[string]    { return oneOf("c1", "c2", "c3") }
func genSpec() *rapid.Generator[string]    { return oneOf("p1", "p2", "p3") }

func optional[T any](t *rapid.T, g *rapid.Generator[T], label string) *T {
	if rapid.Bool().Draw(t, label+" given") {
		v := g.Draw(t, label)
		return &v
	}
	return nil
}

// wideText is too long in bytes (below VersionCharacters) and not in characters.
var wideText = strings.Repeat("é", MaxLine/2+1)

// genRef returns a ref under a prefix, sometimes the zero one, rarely an invalid one.
func genRef(path string) *rapid.Generator[SecretRef] {
	return rapid.Custom(func(t *rapid.T) SecretRef {
		switch v := rapid.IntRange(-1, 8).Draw(t, "version"); {
		case v == -1:
			return SecretRef{Path: path, Version: -1}
		case v < 3:
			return SecretRef{}
		default:
			created := rapid.SampledFrom([]string{"", "2026-01-02T03:04:05.123456789Z"}).Draw(t, "created")
			return SecretRef{Path: path, Version: v, Created: created}
		}
	})
}

// settingTexts returns what to draw for a text of the settings, with one that is refused.
func settingTexts(name string) []string {
	switch name {
	case "agent_kind":
		return []string{"", AgentOpenHands, AgentACP, "a"}
	case "acp_server":
		return []string{"", "opencode", "mine", AgentCustom, "gone"}
	case "sandbox_grouping_strategy":
		return append(Groupings(), "a")
	}
	return []string{"", "a", "b"}
}

// genSettingsValues draws every member by its type.
func genSettingsValues(t *rapid.T) SettingsValues {
	var v SettingsValues
	row := reflect.ValueOf(&v).Elem()
	for i := range row.NumField() {
		name := settingsMembers[i].name
		switch p := row.Field(i).Addr().Interface().(type) {
		case **string:
			*p = optional(t, oneOf(settingTexts(name)...), name)
		case **[]string:
			*p = optional(t, rapid.SampledFrom([][]string{{}, {"agent", "acp"}}), name)
		case **int64:
			*p = optional(t, rapid.Int64Range(-2, 100), name)
		case **float64:
			*p = optional(t, rapid.Float64Range(-1, 1), name)
		case **bool:
			*p = optional(t, rapid.Bool(), name)
		case *bool:
			*p = rapid.Bool().Draw(t, name)
		default:
			panic("no generator for the setting " + name)
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "wide") == 0 {
		v.Language = &wideText
	}
	return v
}

func genSettings(t *rapid.T) *SettingsPutBody {
	b := &SettingsPutBody{
		Values:        genSettingsValues(t),
		LLMAPIKey:     optional(t, genRef("llm"), "llm key"),
		SearchAPIKey:  optional(t, genRef("search"), "search key"),
		SandboxAPIKey: optional(t, genRef("shared"), "sandbox key"),
		MCPConfig:     genRef("shared").Draw(t, "mcp"),
	}
	b.Providers = genProviders(t)
	for _, name := range rapid.SliceOfN(oneOf("A", "B"), 0, 2).Draw(t, "custom secrets") {
		b.CustomSecrets = append(b.CustomSecrets, CustomSecret{Name: name, Ref: genRef("custom/"+name).Draw(t, "ref")})
	}
	return b
}

func genProviders(t *rapid.T) []Provider {
	var list []Provider
	for _, p := range rapid.SliceOfN(oneOf("github", "gitlab", "forgejo", "nope"), 0, 2).Draw(t, "providers") {
		list = append(list, Provider{
			Type: ProviderType(p), Ref: genRef("provider/"+p).Draw(t, "ref"),
			Host:           optional(t, oneOf("h1", "h2"), "host"),
			ExternalUserID: optional(t, oneOf("u1", "u2"), "external user"),
		})
	}
	return list
}

func genSpecApply(t *rapid.T) *SpecApplyBody {
	b := &SpecApplyBody{
		Replace:    rapid.Bool().Draw(t, "replace"),
		OnlyIfNone: rapid.IntRange(0, 3).Draw(t, "only if none") == 0,
	}
	for _, id := range rapid.SliceOfNDistinct(genSpec(), 1, 3, rapid.ID).Draw(t, "specs") {
		s := dockerSpec(id)
		s.Template.CPU = rapid.IntRange(0, 3).Draw(t, "cpu") * 100
		s.Pool = rapid.IntRange(0, 2).Draw(t, "pool")
		if rapid.IntRange(0, 3).Draw(t, "confined") == 0 {
			s.Template.CapAdd, s.Template.Runtime, s.Template.ReadonlyRootfs = []string{"CHOWN"}, "runsc", true
			s.Template.Isolation = IsolationStandard
		}
		if rapid.IntRange(0, 3).Draw(t, "agents") == 0 {
			s.Agents, s.AllowAgentCommand = []Agent{
				{ID: "opencode"},
				{ID: "mine", Command: "agent", Args: []string{"acp"}},
			}, true
		}
		b.Specs = append(b.Specs, s)
	}
	return b
}

func genSandboxCreate(t *rapid.T) *SandboxCreateBody {
	b := newSandboxBody(genSandbox().Draw(t, "sandbox"))
	b.SpecID = oneOf("", "", "p1", "p2", "p3").Draw(t, "spec")
	if rapid.IntRange(0, 9).Draw(t, "other key") == 0 {
		b.KeyHash = sha(genSandbox().Draw(t, "key"))
	}
	if rapid.Bool().Draw(t, "warm") {
		return &SandboxCreateBody{SpecID: b.SpecID, Warm: true}
	}
	return b
}

func genPolicy(t *rapid.T) Policy {
	d := rapid.SampledFrom([]time.Duration{0, 0, -1, time.Minute, time.Hour})
	return Policy{
		IdleTimeout:       d.Draw(t, "idle"),
		MaxRunning:        d.Draw(t, "max running"),
		DeletePausedAfter: d.Draw(t, "delete paused"),
	}
}

// genLimits usually limits one or two resources, so that each limit is reached.
func genLimits(t *rapid.T) Limits {
	var l Limits
	for range rapid.IntRange(0, 2).Draw(t, "limits") {
		n := rapid.IntRange(1, 3).Draw(t, "limit")
		switch rapid.IntRange(0, 5).Draw(t, "of") {
		case 0:
			l.Running = n
		case 1:
			l.Total = n + 1
		case 2, 5:
			l.StartsPerMinute = n
		case 3:
			l.CPU = n * 400
		case 4:
			l.Memory = n * 1024
		}
	}
	return l
}

func genInstallation(t *rapid.T) Installation {
	i := Installation{
		Policy:  genPolicy(t),
		OnLimit: OnLimit(oneOf("", "refuse", "pause_oldest", "pause_oldest").Draw(t, "on limit")),
	}
	if rapid.Bool().Draw(t, "per user") {
		i.PerUser = genLimits(t)
	} else {
		i.Overall = genLimits(t)
	}
	if rapid.Bool().Draw(t, "shared") {
		i.Git = Git{Unverified: rapid.Bool().Draw(t, "unverified"), AllowedHosts: []string{"git.example.org"}}
		i.CORS.Origins = []string{"https://app.example.org"}
		i.LLM = LLM{
			Direct:   rapid.Bool().Draw(t, "direct"),
			Hosts:    []string{HostsVendors, "10.1.2.0/24"},
			Prices:   []Price{{Model: "gpt-*", Input: 1}},
			Servers:  []ModelServer{{Host: "llm.example.org", Headers: map[string]string{"X-Team": "a"}, Slots: 2}},
			Profiles: []ModelProfile{{Model: "qwen*", ModelSettings: ModelSettings{MaxInputTokens: ptr(int64(9000))}}},
		}
	}
	return i
}

func genUserConfigure(t *rapid.T) *UserConfigureBody {
	b := &UserConfigureBody{UserID: oneOf("ada", "bob", "eve").Draw(t, "whose")}
	if rapid.Bool().Draw(t, "own policy") {
		b.Policy = ptr(genPolicy(t))
	}
	if rapid.Bool().Draw(t, "own limits") {
		b.Limits = ptr(genLimits(t))
	}
	return b
}

func genTouch(t *rapid.T, now time.Time) *SandboxTouchBody {
	b := &SandboxTouchBody{}
	for range rapid.IntRange(1, 3).Draw(t, "touches") {
		ago := time.Duration(rapid.IntRange(-1000, 5000).Draw(t, "milliseconds ago")) * time.Millisecond
		touch := Touch{ID: genSandbox().Draw(t, "sandbox"), At: now.Add(-ago)}
		if rapid.Bool().Draw(t, "a message") {
			touch.Conversation = genConv().Draw(t, "conversation")
		}
		b.Touches = append(b.Touches, touch)
	}
	return b
}

func genExpire(t *rapid.T, now time.Time) *SandboxExpireBody {
	b := &SandboxExpireBody{
		ID: genSandbox().Draw(t, "sandbox"), Generation: rapid.Uint64Range(1, 4).Draw(t, "generation"),
		Action: oneOf(ExpirePause, ExpirePause, ExpireDelete, "x").Draw(t, "action"),
		Reason: oneOf(PausedByIdle, PausedByMaxRunning).Draw(t, "reason"),
	}
	if rapid.Bool().Draw(t, "never used") {
		b.NotActiveSince = now.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "seconds ago")) * time.Second)
	}
	return b
}

func genConversationUpdate(t *rapid.T) *ConversationUpdateBody {
	return &ConversationUpdateBody{
		ID: genConv().Draw(t, "conversation"),
		Set: rapid.SliceOfNDistinct(oneOf("title", "selected_repository", "selected_branch"), 0, 3,
			rapid.ID).Draw(t, "set"),
		Title:          optional(t, oneOf("A", "B"), "title"),
		SelectedBranch: optional(t, oneOf("main"), "branch"), SelectedRepository: optional(t, oneOf("a/b"), "repository"),
	}
}

func genObserve(t *rapid.T) *SandboxObserveBody {
	b := &SandboxObserveBody{}
	for range rapid.IntRange(1, 3).Draw(t, "observations") {
		o := Observation{ID: genSandbox().Draw(t, "sandbox")}
		o.Status.State = SandboxState(oneOf("STARTING", "RUNNING", "PAUSED", "ERROR", "MISSING").Draw(t, "state"))
		o.Status.Generation = rapid.Uint64Range(0, 4).Draw(t, "generation")
		o.Status.Reason = oneOf("", "image", ReasonClient).Draw(t, "reason")
		if rapid.Bool().Draw(t, "placed") {
			o.Status.Placement = &Placement{
				AllocID: oneOf("a1", "a2").Draw(t, "alloc"),
				Ports:   map[string]int{PortAgentServer: 1},
			}
		}
		b.Observations = append(b.Observations, o)
	}
	return b
}

func genStartTaskCreate(t *rapid.T) *StartTaskCreateBody {
	id := genTask().Draw(t, "task")
	b := &StartTaskCreateBody{
		ID: id, ConversationID: genConv().Draw(t, "conversation"), Join: rapid.Bool().Draw(t, "join"),
		Secrets: genRef("task/"+id).Draw(t, "secrets"),
	}
	if rapid.Bool().Draw(t, "v0") {
		b.V0ID = "v0-" + genConv().Draw(t, "v0 id")
	}
	if rapid.IntRange(0, 3).Draw(t, "child") == 0 {
		b.Request.ParentConversationID = ptr(genConv().Draw(t, "parent"))
	}
	b.Request.SandboxID = optional(t, genSandbox(), "wished sandbox")
	b.Request.LLMModel = optional(t, oneOf("m1", "m2"), "model")
	b.LLMProfile = oneOf("", "", "", "id1", "id2").Draw(t, "profile")
	return b
}

func genStartTaskBind(t *rapid.T) *StartTaskBindBody {
	b := &StartTaskBindBody{ID: genTask().Draw(t, "task")}
	if rapid.Bool().Draw(t, "create") {
		b.Create = genSandboxCreate(t)
		b.SandboxID = b.Create.ID
	} else {
		b.SandboxID = genSandbox().Draw(t, "sandbox")
	}
	return b
}

// genTaskSetup returns a question about one file.
func genTaskSetup(content string) *TaskSetup {
	files := []SetupFile{{Path: ".openhands/setup.sh", SHA256: sha(content)}}
	return &TaskSetup{
		Repository: "https://github.com/octo/app.git",
		Hash:       SetupHash(files),
		Directory:  "/w/app",
		Files:      files,
	}
}

// genBody returns a body of one of the command types with the user it acts for.
func genBody(t *rapid.T, types []CommandType, now time.Time) (string, Body) {
	user := genUser().Draw(t, "user")
	switch c := rapid.SampledFrom(types).Draw(t, "command"); c {
	case TermOpen:
		return "", &TermOpenBody{
			Term:      rapid.Uint64Range(0, 9).Draw(t, "term"),
			Node:      "n1",
			ClusterID: oneOf("x", "y").Draw(t, "cluster"),
		}
	case ProtocolRaise:
		return "", &ProtocolRaiseBody{Version: rapid.IntRange(0, ProtocolVersion).Draw(t, "version")}
	case APIKeyCreate:
		l := oneOf("k1", "k2", "k3").Draw(t, "lookup")
		return "", &APIKeyCreateBody{Lookup: l, Hash: sha(l), UserID: user, Bootstrap: rapid.Bool().Draw(t, "bootstrap")}
	case APIKeyRevoke:
		return "", &APIKeyRevokeBody{ID: rapid.IntRange(0, 4).Draw(t, "key")}
	case SettingsPut:
		return user, genSettings(t)
	case ProvidersReplace:
		return user, &ProvidersReplaceBody{Providers: genProviders(t)}
	case SpecApply:
		return "", genSpecApply(t)
	case SpecDelete:
		return "", &SpecDeleteBody{ID: genSpec().Draw(t, "spec")}
	case SandboxCreate:
		return user, genSandboxCreate(t)
	case SandboxPause:
		return user, &SandboxPauseBody{
			ID:        genSandbox().Draw(t, "sandbox"),
			Operator:  rapid.IntRange(0, 9).Draw(t, "operator") == 0,
			StopAfter: rapid.SampledFrom([]time.Duration{0, 0, 30 * time.Second}).Draw(t, "stop after"),
		}
	case SandboxResume:
		return user, &SandboxResumeBody{ID: genSandbox().Draw(t, "sandbox")}
	case SandboxDelete:
		return user, &SandboxDeleteBody{ID: genSandbox().Draw(t, "sandbox")}
	case SandboxObserve:
		return "", genObserve(t)
	case SandboxRemove:
		return "", &SandboxRemoveBody{ID: genSandbox().Draw(t, "sandbox")}
	case StartTaskCreate:
		return user, genStartTaskCreate(t)
	case StartTaskBind:
		return "", genStartTaskBind(t)
	case StartTaskAdvance:
		s := rapid.SampledFrom([]StartTaskStatus{
			StartTaskWorking,
			StartTaskPreparingRepository,
			StartTaskStartingConversation,
			StartTaskReady,
		})
		return "", &StartTaskAdvanceBody{
			ID:        genTask().Draw(t, "task"),
			Status:    s.Draw(t, "status"),
			Detail:    oneOf("", "d").Draw(t, "detail"),
			Delivered: oneOf("", "m1", "m2").Draw(t, "delivered"),
		}
	case StartTaskFinish:
		c := Conversation{
			ID:       genConv().Draw(t, "conversation"),
			Title:    optional(t, oneOf("T"), "title"),
			ParentID: optional(t, genConv(), "parent"),
		}
		return "", &StartTaskFinishBody{ID: genTask().Draw(t, "task"), Conversation: c}
	case StartTaskQueue:
		return genUser().Draw(t, "asking"), &StartTaskQueueBody{ID: genTask().Draw(t, "task"), Message: PendingMessage{
			ID: oneOf("m1", "m2", "m3").Draw(t, "message"), Message: Message{
				Role:    "user",
				Content: []ContentBlock{{Type: BlockText, Text: "go on"}},
				Run:     true,
			},
		}}
	case StartTaskAsk:
		file := oneOf("setup", "other").Draw(t, "file")
		return "", &StartTaskAskBody{ID: genTask().Draw(t, "task"), Setup: *genTaskSetup(file)}
	case StartTaskAnswer:
		hash := genTaskSetup(oneOf("setup", "other").Draw(t, "file")).Hash
		return genUser().Draw(t, "answering"), &StartTaskAnswerBody{
			ID: genTask().Draw(t, "task"), Hash: hash, Accept: rapid.Bool().Draw(t, "accept"),
		}
	case StartTaskFail:
		return "", &StartTaskFailBody{ID: genTask().Draw(t, "task"), Detail: oneOf("", "broken", "\xff").Draw(t, "detail")}
	default:
		return genNewerBody(t, c, user, now)
	}
}

// genNewerBody is genBody for policies, limits, pools and conversations.
func genNewerBody(t *rapid.T, c CommandType, user string, now time.Time) (string, Body) {
	switch c {
	case InstallationConfigure:
		b := &InstallationConfigureBody{Installation: genInstallation(t), Seed: rapid.Bool().Draw(t, "seed")}
		if rapid.IntRange(0, 3).Draw(t, "checked") == 0 {
			b.CheckIndex = new(uint64(rapid.IntRange(0, 40).Draw(t, "check index")))
		}
		return "", b
	case UserConfigure:
		return "", genUserConfigure(t)
	case SpecPool:
		return "", &SpecPoolBody{ID: genSpec().Draw(t, "spec"), Size: rapid.IntRange(0, 3).Draw(t, "size")}
	case PoolAdd:
		id := genMember().Draw(t, "member")
		b := newMember(id, genSpec().Draw(t, "spec"))
		if rapid.IntRange(0, 9).Draw(t, "other key") == 0 {
			b.KeyHash = sha(genSandbox().Draw(t, "key"))
		}
		return "", b
	case PoolDrop:
		return "", &PoolDropBody{ID: genMember().Draw(t, "member"), Reason: "outdated"}
	case SandboxTouch:
		return "", genTouch(t, now)
	case SandboxExpire:
		return "", genExpire(t, now)
	case ConversationUpdate:
		return user, genConversationUpdate(t)
	case EventsAppend:
		return user, genEventsAppend(t)
	case EventsKey:
		return user, &EventsKeyBody{Key: genRef("events").Draw(t, "event key")}
	case ConversationSwitchLLM:
		return user, &ConversationSwitchLLMBody{
			ID:      genConv().Draw(t, "conversation"),
			Model:   oneOf("", "gpt-5", "qwen/x").Draw(t, "model"),
			Profile: oneOf("", "", "id1").Draw(t, "profile"),
		}
	case ConversationDelete:
		return user, &ConversationDeleteBody{
			ID:            genConv().Draw(t, "conversation"),
			DeleteSandbox: rapid.Bool().Draw(t, "and sandbox"),
		}
	default:
		return genHistoryBody(t, c)
	}
}

// genHistory returns a log. Some command ids occur twice, some are clients', and clocks jump in
// both directions.
func genHistory(most int) *rapid.Generator[[]Entry] { return genHistoryOf(most, commandTypes()) }

// genHistoryOf is genHistory with only some command types.
func genHistoryOf(most int, types []CommandType) *rapid.Generator[[]Entry] {
	return rapid.Custom(func(t *rapid.T) []Entry {
		n := rapid.IntRange(1, most).Draw(t, "length")
		entries := make([]Entry, 0, n)
		now, index := testEpoch, uint64(0)
		for i := range n {
			index += rapid.Uint64Range(1, 2).Draw(t, "gap")
			unit := rapid.SampledFrom([]time.Duration{time.Second, time.Second, time.Second, time.Minute}).Draw(t, "unit")
			now = now.Add(time.Duration(rapid.IntRange(-2, 20).Draw(t, "time")) * unit)
			if rapid.IntRange(0, 19).Draw(t, "pause") == 0 {
				now = now.Add(13 * time.Hour)
			}
			user, body := genBody(t, types, now)
			cmd := NewCommand(fmt.Sprintf("i%d", i), now, user, body)
			switch rapid.IntRange(0, 9).Draw(t, "credential") {
			case 0, 1:
				cmd.Credential.Lookup = oneOf("k1", "k2", "k3").Draw(t, "key shown")
			case 2:
				sandbox := genSandbox().Draw(t, "sandbox that asks")
				cmd.Credential = Credential{SandboxID: sandbox, KeyHash: sha(sandbox)}
			case 3:
				cmd.Credential.Lookup = oneOf("k1", "k2", "k3").Draw(t, "key of a session")
				cmd.Credential.KeyHash = genToken().Draw(t, "session that acts")
			}
			switch rapid.IntRange(0, 9).Draw(t, "id") {
			case 0:
				cmd.ID = fmt.Sprintf("i%d", rapid.IntRange(0, i).Draw(t, "same id"))
			case 1, 2:
				cmd.ID = oneOf("x1", "x2").Draw(t, "client id")
				cmd.Fingerprint = oneOf("f1", "f2").Draw(t, "fingerprint")
			}
			entries = append(entries, Entry{index, cmd})
		}
		return entries
	})
}
