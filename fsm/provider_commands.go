package fsm

// ProvidersReplaceBody replaces the git providers of Command.UserID (POST /api/add-git-providers;
// API.md, "Git providers: replace"). Providers that it does not name are removed. A provider with a
// zero Ref keeps its stored token and takes the given host.
type ProvidersReplaceBody struct {
	Providers []Provider `json:"providers"`
}

// CommandType implements Body.
func (*ProvidersReplaceBody) CommandType() CommandType { return ProvidersReplace }

// check implements Body.
func (b *ProvidersReplaceBody) check(r *rules) {
	r.providers(b.Providers)
}

// providers checks a list of provider connections.
func (r *rules) providers(list []Provider) {
	seen := make(map[ProviderType]bool, len(list))
	r.count("providers", len(list))
	for i := range list {
		p := &list[i]
		r.check(p.Type.Known(), "unknown git provider %q", clip(string(p.Type)))
		r.check(!seen[p.Type], "the git provider %s is given twice", clip(string(p.Type)))
		seen[p.Type] = true
		r.optional("a git provider's host", p.Host, r.limit(MaxName, MaxPath))
		r.optional("a git provider's user_id", p.ExternalUserID, MaxName)
		r.ref("a git provider", p.Ref)
	}
}

func (t *transaction) applyProvidersReplace(b *ProvidersReplaceBody) (Result, *Error) {
	user := t.cmd.UserID
	if err := t.mayGrow(user, t.providersGrowth(user, b.Providers)); err != nil {
		return Result{}, err
	}
	named := make(map[ProviderType]bool, len(b.Providers))
	for i := range b.Providers {
		named[b.Providers[i].Type] = true
		t.putProvider(user, b.Providers[i])
	}
	for _, p := range collect(withPrefix[Provider](t.txn, tableProviders, indexID, prefixOf(user))) {
		if !named[p.Type] {
			drop(t, tableProviders, p)
		}
	}
	return Result{}, nil
}

// providersGrowth returns how much storing the connections adds to the state, without what others
// that are removed give back.
func (t *transaction) providersGrowth(user string, list []Provider) (n int) {
	for i := range list {
		old := first[Provider](t.txn, tableProviders, indexID, keyOf(user, string(list[i].Type)))
		next := list[i].over(old)
		n += growthOf(&t.meta, old, &next)
	}
	return n
}

// putProvider stores one connection of a user.
func (t *transaction) putProvider(user string, p Provider) {
	p.UserID = user
	old := first[Provider](t.txn, tableProviders, indexID, keyOf(user, string(p.Type)))
	next := p.over(old)
	put(t, tableProviders, old, &next)
}

// over returns the connection that takes the place of old; nil is none. Without a token it keeps the
// stored token, and the stored user id unless another is given.
func (p Provider) over(old *Provider) Provider {
	if old != nil && p.Ref.IsZero() {
		p.Ref = old.Ref
		p.ExternalUserID = firstOf(p.ExternalUserID, old.ExternalUserID)
	}
	return p
}
