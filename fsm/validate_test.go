package fsm

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestValidate: one valid body per command, and changes that each break one rule.
func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		good func() Body
		bad  map[string]func(Body)
	}{
		"term.open":    {func() Body { return &TermOpenBody{Term: 1, Node: "n", ClusterID: "c"} }, nil},
		"api_key":      {func() Body { return &APIKeyCreateBody{Lookup: "a", Hash: sha("a"), UserID: "ada"} }, badAPIKeys()},
		"settings":     {func() Body { return settingsBody() }, badSettings()},
		"spec docker":  {func() Body { return &SpecApplyBody{Specs: []Spec{dockerSpec("py")}} }, badSpecs()},
		"sandbox":      {func() Body { return newSandboxBody("s1") }, badSandboxes()},
		"observation":  {goodObservation, badObservations()},
		"start task":   {goodStartTask, badStartTasks()},
		"finish":       {goodFinish, badFinishes()},
		"bind":         {func() Body { return &StartTaskBindBody{ID: "t", SandboxID: "any thing"} }, badBinds()},
		"claim":        {goodClaim, badClaims()},
		"pool":         {goodMember, badMembers()},
		"installation": {func() Body { return &InstallationConfigureBody{} }, badInstallations()},
		"user": {func() Body {
			return &UserConfigureBody{UserID: "ada", Policy: &Policy{MaxRunning: -1}, Limits: &Limits{}}
		}, badUsers()},
		"touch": {func() Body { return &SandboxTouchBody{Touches: []Touch{{ID: "any thing"}}} }, badTouches()},
		"expire": {
			func() Body { return &SandboxExpireBody{ID: "s", Action: ExpireDelete, Reason: "x"} },
			badExpiries(),
		},
		"change": {
			func() Body { return &ConversationUpdateBody{ID: "any thing", Set: []string{"title"}} },
			badChanges(),
		},
		"pause unknown": {
			func() Body { return &SandboxPauseBody{ID: "no/such id"} },
			map[string]func(Body){"long": func(b Body) { b.(*SandboxPauseBody).ID = long(MaxName) }},
		},
	} {
		if err := Validate(c.good()); err != nil {
			t.Errorf("%s: the good one is refused: %v", name, err)
		}
		for what, change := range c.bad {
			b := c.good()
			change(b)
			if err := Validate(b); CodeOf(err) != CodeInvalid {
				t.Errorf("%s: %s: %v", name, what, err)
			} else if len(err.Error()) > 512 {
				t.Errorf("%s: %s: the message has %d bytes", name, what, len(err.Error()))
			}
		}
	}
}

// long returns a text of n+1 bytes.
func long(n int) string { return strings.Repeat("x", n+1) }

func badAPIKeys() map[string]func(Body) {
	set := func(f func(*APIKeyCreateBody)) func(Body) { return func(b Body) { f(b.(*APIKeyCreateBody)) } }
	return map[string]func(Body){
		"no lookup":    set(func(b *APIKeyCreateBody) { b.Lookup = "" }),
		"odd lookup":   set(func(b *APIKeyCreateBody) { b.Lookup = "a b" }),
		"upper hash":   set(func(b *APIKeyCreateBody) { b.Hash = strings.ToUpper(b.Hash) }),
		"short hash":   set(func(b *APIKeyCreateBody) { b.Hash = b.Hash[1:] }),
		"long name":    set(func(b *APIKeyCreateBody) { b.Name = long(MaxName) }),
		"no user":      set(func(b *APIKeyCreateBody) { b.UserID = "" }),
		"dotted user":  set(func(b *APIKeyCreateBody) { b.UserID = ".ada" }),
		"long user":    set(func(b *APIKeyCreateBody) { b.UserID = long(maxUserID) }),
		"user and NUL": set(func(b *APIKeyCreateBody) { b.UserID = "a\x00b" }),
	}
}

func badSettings() map[string]func(Body) {
	set := func(f func(*SettingsPutBody)) func(Body) { return func(b Body) { f(b.(*SettingsPutBody)) } }
	good := SecretRef{Path: "p", Version: 1}
	return map[string]func(Body){
		"long language":    set(func(b *SettingsPutBody) { b.Values.Language = ptr(long(MaxLine)) }),
		"not UTF-8":        set(func(b *SettingsPutBody) { b.Values.Email = ptr("\xff") }),
		"ref without path": set(func(b *SettingsPutBody) { b.LLMAPIKey = &SecretRef{Version: 1} }),
		"negative version": set(func(b *SettingsPutBody) { b.MCPConfig = SecretRef{Path: "p", Version: -1} }),
		"long path":        set(func(b *SettingsPutBody) { b.MCPConfig = SecretRef{Path: long(MaxPath), Version: 1} }),
		"NUL in path":      set(func(b *SettingsPutBody) { b.MCPConfig = SecretRef{Path: "a\x00", Version: 1} }),
		"provider twice":   set(func(b *SettingsPutBody) { b.Providers = []Provider{{Type: "github"}, {Type: "github"}} }),
		"long host": set(func(b *SettingsPutBody) {
			b.Providers = []Provider{
				{Type: "github", Host: ptr(long(MaxPath))},
			}
		}),
		"nameless secret": set(func(b *SettingsPutBody) { b.CustomSecrets = []CustomSecret{{Ref: good}} }),
		"NUL in name":     set(func(b *SettingsPutBody) { b.CustomSecrets = []CustomSecret{{Name: "a\x00", Ref: good}} }),
		"secret twice": set(func(b *SettingsPutBody) {
			b.CustomSecrets = []CustomSecret{{Name: "A", Ref: good}, {Name: "A", Ref: good}}
		}),
		"too many secrets": set(func(b *SettingsPutBody) { b.CustomSecrets = make([]CustomSecret, maxList+1) }),
		"long description": set(func(b *SettingsPutBody) {
			b.CustomSecrets = []CustomSecret{{Name: "A", Ref: good, Description: long(MaxLine)}}
		}),
		"budget not finite": set(func(b *SettingsPutBody) { b.Values.MaxBudgetPerTask = ptr(inf()) }),
	}
}

func inf() float64 {
	big := 1e308
	return big * 10
}

func badSpecs() map[string]func(Body) {
	set := func(f func(*Spec)) func(Body) { return func(b Body) { f(&b.(*SpecApplyBody).Specs[0]) } }
	local := func(f func(*Template)) func(Body) {
		return set(func(s *Spec) {
			s.Template = Template{
				Driver:    DriverRawExec,
				Isolation: IsolationNone,
				Command:   "/bin/agent",
				CPU:       1,
				Memory:    1,
				Ports:     s.Template.Ports,
			}
			f(&s.Template)
		})
	}
	return map[string]func(Body){
		"no id":             set(func(s *Spec) { s.ID = "" }),
		"no image":          set(func(s *Spec) { s.Template.Image = "" }),
		"relative dir":      set(func(s *Spec) { s.Template.WorkingDir = "project" }),
		"relative volume":   set(func(s *Spec) { s.Template.VolumePath = "workspace" }),
		"odd network":       set(func(s *Spec) { s.Template.NetworkMode = "none" }),
		"no CPU":            set(func(s *Spec) { s.Template.CPU = 0 }),
		"much CPU":          set(func(s *Spec) { s.Template.CPU = maxCPU + 1 }),
		"negative memory":   set(func(s *Spec) { s.Template.Memory = -1 }),
		"no agent port":     set(func(s *Spec) { s.Template.Ports = map[string]int{"VSCODE": 1} }),
		"high port":         set(func(s *Spec) { s.Template.Ports = map[string]int{PortAgentServer: 65536} }),
		"odd port name":     set(func(s *Spec) { s.Template.Ports = map[string]int{PortAgentServer: 1, "a b": 1} }),
		"negative timeout":  set(func(s *Spec) { s.Template.StartTimeout = -time.Second }),
		"long timeout":      set(func(s *Spec) { s.Template.StartTimeout = 25 * time.Hour }),
		"empty env name":    set(func(s *Spec) { s.Template.Env = map[string]string{"": "x"} }),
		"long env":          set(func(s *Spec) { s.Template.Env = map[string]string{"A": long(MaxParagraph)} }),
		"many args":         set(func(s *Spec) { s.Template.Args = make([]string, maxList+1) }),
		"no driver":         set(func(s *Spec) { s.Template.Driver = "" }),
		"no command":        local(func(p *Template) { p.Command = "" }),
		"absolute dir":      local(func(p *Template) { p.WorkingDir = "/etc" }),
		"dir outside":       local(func(p *Template) { p.WorkingDir = "a/../../b" }),
		"image of raw_exec": local(func(p *Template) { p.Image = "x" }),
		"odd capability":    set(func(s *Spec) { s.Template.CapAdd = []string{"SYS_ADMIN"} }),
		"capability twice":  set(func(s *Spec) { s.Template.CapAdd = []string{"CHOWN", "CHOWN"} }),
		"odd runtime":       set(func(s *Spec) { s.Template.Runtime = "a/b" }),
		"caps of raw_exec":  local(func(p *Template) { p.CapAdd = []string{"CHOWN"} }),
		"runtime of raw":    local(func(p *Template) { p.Runtime = "runsc" }),
		"read-only raw":     local(func(p *Template) { p.ReadonlyRootfs = true }),
		"raw, no isolation": local(func(p *Template) { p.Isolation = "" }),
		"raw, isolated":     local(func(p *Template) { p.Isolation = IsolationStandard }),
		"host, isolated":    set(func(s *Spec) { s.Template.NetworkMode = "host" }),
		"odd isolation":     set(func(s *Spec) { s.Template.Isolation = "some" }),
		"closed, none":      set(func(s *Spec) { s.Template.Isolation = IsolationNone }),
		"unlimited":         local(func(p *Template) { p.Memory = 0 }),
	}
}

func badSandboxes() map[string]func(Body) {
	set := func(f func(*SandboxCreateBody)) func(Body) { return func(b Body) { f(b.(*SandboxCreateBody)) } }
	return map[string]func(Body){
		"no id":         set(func(b *SandboxCreateBody) { b.ID = "" }),
		"long id":       set(func(b *SandboxCreateBody) { b.ID = long(maxSandID) }),
		"dash first":    set(func(b *SandboxCreateBody) { b.ID = "-a" }),
		"underscore":    set(func(b *SandboxCreateBody) { b.ID = "a_b" }),
		"dot":           set(func(b *SandboxCreateBody) { b.ID = "a.b" }),
		"other letters": set(func(b *SandboxCreateBody) { b.ID = "é" }),
		"no key":        set(func(b *SandboxCreateBody) { b.KeyRef = SecretRef{} }),
		"no hash":       set(func(b *SandboxCreateBody) { b.KeyHash = "" }),
		"long spec":     set(func(b *SandboxCreateBody) { b.SpecID = long(MaxName) }),
	}
}

func goodObservation() Body {
	return &SandboxObserveBody{Observations: []Observation{{ID: "s1", Status: SandboxStatus{
		State: SandboxRunning, Detail: "\xff" + long(maxWords), Placement: &Placement{Ports: map[string]int{"A": 1}},
	}}}}
}

func badObservations() map[string]func(Body) {
	set := func(f func(*Observation)) func(Body) {
		return func(b Body) { f(&b.(*SandboxObserveBody).Observations[0]) }
	}
	return map[string]func(Body){
		"no id":        set(func(o *Observation) { o.ID = "" }),
		"no state":     set(func(o *Observation) { o.Status.State = "" }),
		"huge detail":  set(func(o *Observation) { o.Status.Detail = long(maxSize) }),
		"long address": set(func(o *Observation) { o.Status.Placement.Address = long(MaxName) }),
		"odd port":     set(func(o *Observation) { o.Status.Placement.Ports = map[string]int{"A": -1} }),
		"too many":     func(b Body) { b.(*SandboxObserveBody).Observations = make([]Observation, maxList+1) },
	}
}

func goodStartTask() Body {
	return &StartTaskCreateBody{ID: "t", ConversationID: "c", V0ID: "any thing/é", Request: StartRequest{
		InitialMessage: &Message{Content: []ContentBlock{{Text: long(MaxText - 1)}}},
		SuggestedTask:  &SuggestedTask{}, Plugins: []PluginSource{{Source: "s"}},
	}}
}

func badStartTasks() map[string]func(Body) {
	set := func(f func(*StartTaskCreateBody)) func(Body) { return func(b Body) { f(b.(*StartTaskCreateBody)) } }
	req := func(f func(*StartRequest)) func(Body) { return set(func(b *StartTaskCreateBody) { f(&b.Request) }) }
	deep := any("x")
	for range 40 {
		deep = []any{deep}
	}
	return map[string]func(Body){
		"no id":       set(func(b *StartTaskCreateBody) { b.ID = "" }),
		"huge number": req(func(q *StartRequest) { q.ObservabilityMetadata = map[string]any{"a": json.Number("1e999")} }),
		"huge number deep": req(func(q *StartRequest) {
			q.Plugins = []PluginSource{
				{Source: "x", Parameters: map[string]any{"a": []any{map[string]any{"b": json.Number("-1e999")}}}},
			}
		}),
		"infinity": req(func(q *StartRequest) { q.ObservabilityMetadata = map[string]any{"a": math.Inf(1)} }),
		"processor's number": req(func(q *StartRequest) {
			q.Processors = []json.RawMessage{
				json.RawMessage(`{"n":1e999}`),
			}
		}),
		"processor of no JSON": req(func(q *StartRequest) { q.Processors = []json.RawMessage{json.RawMessage(`{`)} }),
		"slash in id":          set(func(b *StartTaskCreateBody) { b.ID = "a/b" }),
		"no conversation":      set(func(b *StartTaskCreateBody) { b.ConversationID = "" }),
		"long v0 id":           set(func(b *StartTaskCreateBody) { b.V0ID = long(maxID) }),
		"control in v0 id":     set(func(b *StartTaskCreateBody) { b.V0ID = "a\nb" }),
		"long message":         req(func(q *StartRequest) { q.InitialMessage.Content[0].Text = long(MaxText) }),
		"many blocks":          req(func(q *StartRequest) { q.InitialMessage.Content = make([]ContentBlock, maxList+1) }),
		"many images": req(
			func(q *StartRequest) { q.InitialMessage.Content[0].ImageURLs = make([]string, maxList+1) },
		),
		"long title":      req(func(q *StartRequest) { q.Title = ptr(long(MaxLine)) }),
		"many numbers":    req(func(q *StartRequest) { q.PRNumber = make([]int64, maxList+1) }),
		"odd provider":    req(func(q *StartRequest) { q.GitProvider = ptr(ProviderType("svn")) }),
		"long suggestion": req(func(q *StartRequest) { q.SuggestedTask.Title = long(MaxLine) }),
		"long plugin":     req(func(q *StartRequest) { q.Plugins[0].Source = long(MaxLine) }),
		"deep parameters": req(func(q *StartRequest) { q.Plugins[0].Parameters = map[string]any{"a": deep} }),
		"large metadata":  req(func(q *StartRequest) { q.ObservabilityMetadata = map[string]any{"a": long(maxSize)} }),
		"large in all": req(func(q *StartRequest) {
			q.SystemMessageSuffix = ptr(long(MaxParagraph - 1))
			q.Processors = []json.RawMessage{json.RawMessage(long(maxSize))}
		}),
		"many secrets": req(func(q *StartRequest) {
			m := map[string]string{}
			for i := range maxList + 1 {
				m[strings.Repeat("x", i%200+1)+string(rune('a'+i%26))+string(rune('0'+i/250))] = ""
			}
			for i := range 2000 {
				m[strings.Repeat("y", i%250+1)+string(rune(0x100+i))] = ""
			}
			q.Secrets = &m
		}),
	}
}

func goodFinish() Body {
	return &StartTaskFinishBody{ID: "t", Conversation: Conversation{ID: "c", Tags: map[string]string{"a": "b"}}}
}

func badFinishes() map[string]func(Body) {
	set := func(f func(*Conversation)) func(Body) {
		return func(b Body) { f(&b.(*StartTaskFinishBody).Conversation) }
	}
	return map[string]func(Body){
		"no conversation": set(func(c *Conversation) { c.ID = "" }),
		"long title":      set(func(c *Conversation) { c.Title = ptr(long(MaxLine)) }),
		"odd parent":      set(func(c *Conversation) { c.ParentID = ptr("a b") }),
		"odd provider":    set(func(c *Conversation) { c.GitProvider = ptr(ProviderType("svn")) }),
		"long tag":        set(func(c *Conversation) { c.Tags = map[string]string{"a": long(MaxParagraph)} }),
		"tag not UTF-8":   set(func(c *Conversation) { c.Tags = map[string]string{"\xff": ""} }),
	}
}

func badBinds() map[string]func(Body) {
	set := func(f func(*StartTaskBindBody)) func(Body) { return func(b Body) { f(b.(*StartTaskBindBody)) } }
	return map[string]func(Body){
		"no id":         set(func(b *StartTaskBindBody) { b.ID = "" }),
		"long sandbox":  set(func(b *StartTaskBindBody) { b.SandboxID = long(MaxName) }),
		"other sandbox": set(func(b *StartTaskBindBody) { b.Create = newSandboxBody("s2") }),
		"bad sandbox":   set(func(b *StartTaskBindBody) { b.Create = &SandboxCreateBody{ID: b.SandboxID} }),
	}
}

// TestMessagesAreDeterministic: which of several broken rules is reported must not depend on map
// order, because the message is part of the state.
func TestMessagesAreDeterministic(t *testing.T) {
	tags := map[string]string{}
	for i := range 20 {
		tags[strings.Repeat("k", MaxName+i)] = "ok"
		tags[string(rune('a'+i))] = long(MaxParagraph)
	}
	body := &StartTaskFinishBody{ID: "t", Conversation: Conversation{ID: "c", Tags: tags}}
	spec := dockerSpec("py")
	for i := range 20 {
		spec.Template.Ports[strings.Repeat("a", i+1)] = i
	}
	specs := &SpecApplyBody{Specs: []Spec{spec}}
	want, wantSpecs := Validate(body).Error(), Validate(specs).Error()
	for range 50 {
		body.Conversation.Tags = maps.Clone(tags)
		specs.Specs[0].Template.Ports = maps.Clone(spec.Template.Ports)
		if got := Validate(body).Error(); got != want {
			t.Fatalf("%q, then %q", want, got)
		}
		if got := Validate(specs).Error(); got != wantSpecs {
			t.Fatalf("%q, then %q", wantSpecs, got)
		}
	}
}

// TestFailureWordsAreKept: a failure's text is cleaned and truncated, never refused.
func TestFailureWordsAreKept(t *testing.T) {
	f := newFixture(t).open()
	f.do("ada", &StartTaskCreateBody{ID: "t", ConversationID: "c"})
	body := &StartTaskFailBody{ID: "t", Detail: "exit \xff" + long(maxWords)}
	if err := Validate(body); err != nil {
		t.Fatal(err)
	}
	got := f.do("", body).StartTask.Detail
	if !strings.HasPrefix(got, "exit ") || len(got) > maxWords || strings.Contains(got, "\xff") {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
}

// TestBodies_FreeValuesAreKnown: a member of a command that can hold any JSON needs a rule
// (rules.value or rules.raw), because an entry that Encode writes and DecodeCommand can't read
// would stop every node permanently. This test fails until a new member is in its list.
func TestBodies_FreeValuesAreKnown(t *testing.T) {
	var found []string
	seen := map[reflect.Type]bool{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch {
		case of == reflect.TypeFor[json.RawMessage](), of.Kind() == reflect.Interface, of == reflect.TypeFor[json.Number]():
			found = append(found, path)
			return
		case of == reflect.TypeFor[time.Time](), seen[of]:
			return
		}
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(path, of.Elem())
		case reflect.Struct:
			seen[of] = true
			for i := range of.NumField() {
				walk(of.Name()+"."+of.Field(i).Name, of.Field(i).Type)
			}
		}
	}
	for _, c := range commandTypes() {
		body, err := newBody(c)
		if err != nil {
			t.Fatal(err)
		}
		walk(string(c), reflect.TypeOf(body))
	}
	slices.Sort(found)
	if want := []string{
		"PluginSource.Parameters",
		"Profile.Document",
		"StartRequest.ObservabilityMetadata",
		"StartRequest.Processors",
	}; !slices.Equal(found, want) {
		t.Fatalf("these members hold any JSON: %v; known are %v", found, want)
	}
}
