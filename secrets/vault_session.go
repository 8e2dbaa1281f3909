package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/vault/api"
	"github.com/hashicorp/vault/api/auth/approle"
)

const (
	loginRetryMin = 100 * time.Millisecond
	loginRetryMax = 5 * time.Second
	// revokeLimit bounds the revocation of the token when the node stops.
	revokeLimit = 2 * time.Second
	// filesPause is how often a session looks whether the AppRole's files have changed.
	filesPause = 5 * time.Second
)

// session is one login: a token and the clients that use it.
type session struct {
	client *api.Client
	kv     *api.KVv2
	login  *api.Secret
	// files are the AppRole's files as they were before the login, by name.
	files map[string]os.FileInfo
	// secretID is what it logged in with; accessor names one that the node made itself.
	secretID, accessor string
	// dead is closed, once, by sessions.drop.
	dead chan struct{}
}

// alive asks Vault whether it still knows the token. If Vault does not respond the token counts as
// alive, because a login would fail too.
func (s *session) alive(ctx context.Context) bool {
	_, err := s.client.Auth().Token().LookupSelfWithContext(ctx)
	return !isDenied(err)
}

// sessions holds the current session, or why there is none.
type sessions struct {
	mu      sync.Mutex
	current *session
	err     error         // the last login's, nil while the first is in progress
	changed chan struct{} // closed and replaced at every change
}

func (s *sessions) set(current *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.err = current, err
	close(s.changed)
	s.changed = make(chan struct{})
}

// drop ends a session whose token Vault no longer knows.
func (s *sessions) drop(old *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != old {
		return
	}
	s.current, s.err = nil, nil
	close(old.dead)
	close(s.changed)
	s.changed = make(chan struct{})
}

// session returns the current session. It waits while a login is in progress. When the last login
// failed it returns that error at once.
func (v *Vault) session(ctx context.Context) (*session, error) {
	for {
		v.sessions.mu.Lock()
		current, err, changed := v.sessions.current, v.sessions.err, v.sessions.changed
		v.sessions.mu.Unlock()
		if current != nil || err != nil {
			return current, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: not logged in to vault: %w", ErrUnavailable, ctx.Err())
		}
	}
}

// Run logs in and renews the token. It logs in again when renewal ends or Vault no longer knows the
// token. When ctx ends it revokes the token and returns nil. It retries without limit; it logs each
// new error, and every operation returns it.
func (v *Vault) Run(ctx context.Context) error {
	defer v.http.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	probed := make(chan struct{})
	go func() { defer close(probed); v.probe(ctx) }()
	defer func() { cancel(); <-probed }()
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = loginRetryMin, loginRetryMax
	said := ""
	var s *session
	for {
		var err error
		if s == nil {
			s, err = v.logIn(ctx)
		}
		if ctx.Err() != nil {
			v.end(s)
			return nil
		}
		if err != nil {
			v.metrics.logins.WithLabelValues("failed").Inc()
			v.sessions.set(nil, err)
			if text := err.Error(); text != said { // once, not at every attempt
				said = text
				v.log.Error("logging in to vault failed; trying again", "address", v.cfg.Address, "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retry.NextBackOff()):
			}
			continue
		}
		v.metrics.logins.WithLabelValues("ok").Inc()
		v.log.Info("logged in to vault", "address", v.cfg.Address, "duration",
			time.Duration(s.login.Auth.LeaseDuration)*time.Second)
		said = ""
		retry.Reset()
		next := v.keep(ctx, s)
		if ctx.Err() != nil {
			v.end(s)
			v.end(next)
			return nil
		}
		s = next
	}
}

// logIn creates a session. Its error is ErrUnavailable.
func (v *Vault) logIn(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	files, err := v.files()
	if err != nil {
		return nil, unavailable("%v", err)
	}
	secretID, err := readID(v.cfg.SecretIDFile)
	if err != nil {
		return nil, err
	}
	s, err := v.logInWith(ctx, secretID)
	if err != nil {
		return nil, err
	}
	s.files = files
	return s, nil
}

// logInWith creates a session by a secret id.
func (v *Vault) logInWith(ctx context.Context, secretID string) (*session, error) {
	roleID, err := v.cfg.RoleID, error(nil)
	if v.cfg.RoleIDFile != "" {
		if roleID, err = readID(v.cfg.RoleIDFile); err != nil {
			return nil, err
		}
	}
	auth, err := approle.NewAppRoleAuth(roleID, &approle.SecretID{FromString: secretID},
		approle.WithMountPath(v.cfg.AuthMount))
	if err != nil {
		return nil, unavailable("the AppRole can't be used: %v", err)
	}
	client, err := v.newClient("")
	if err != nil {
		return nil, unavailable("%v", err)
	}
	login, err := client.Auth().Login(ctx, auth)
	if err != nil {
		return nil, v.explainLogin(err)
	}
	if login == nil || login.Auth == nil || login.Auth.ClientToken == "" {
		return nil, unavailable("vault answered the login without a token")
	}
	client.SetToken(login.Auth.ClientToken)
	return &session{
		client:   client,
		kv:       client.KVv2(v.cfg.Mount),
		login:    login,
		secretID: secretID,
		dead:     make(chan struct{}),
	}, nil
}

// files returns the AppRole's files as they are now, by name.
func (v *Vault) files() (map[string]os.FileInfo, error) {
	found := map[string]os.FileInfo{}
	for _, name := range []string{v.cfg.RoleIDFile, v.cfg.SecretIDFile} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		found[name] = info
	}
	return found, nil
}

// renewed logs in again if one of the AppRole's files is another than the session's. It returns nil
// if none is. The session stays in use while the new login fails.
func (v *Vault) renewed(ctx context.Context, s *session) (*session, error) {
	files, err := v.files()
	if err != nil {
		return nil, err
	}
	same := maps.EqualFunc(files, s.files, func(is, was os.FileInfo) bool {
		return os.SameFile(is, was) && is.ModTime().Equal(was.ModTime()) && is.Size() == was.Size()
	})
	if same {
		return nil, nil
	}
	return v.logIn(ctx)
}

// readID reads a role id or secret id.
func readID(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", unavailable("%v", err)
	}
	id := strings.TrimSpace(string(raw))
	if id == "" {
		return "", unavailable("%s is empty", path)
	}
	return id, nil
}

func (v *Vault) explainLogin(err error) error {
	var resp *api.ResponseError
	if errors.As(err, &resp) {
		switch said := strings.Join(resp.Errors, "; "); resp.StatusCode {
		case 400, 403:
			where := v.cfg.SecretIDFile
			if v.cfg.RoleIDFile != "" {
				where = v.cfg.RoleIDFile + " and " + where
			}
			return unavailable(
				"vault refuses the AppRole login at auth/%s (look at the role id and the secret id in %s): %.200s",
				v.cfg.AuthMount,
				where,
				said,
			)
		case 404:
			return unavailable("vault has no AppRole at auth/%s: %.200s", v.cfg.AuthMount, said)
		}
	}
	return explain(err)
}

// keep publishes the session and renews its token until ctx ends, renewal ends or the session is
// dropped. It returns the next session if the AppRole's files made one.
func (v *Vault) keep(ctx context.Context, s *session) (next *session) {
	watcher, err := s.client.NewLifetimeWatcher(&api.LifetimeWatcherInput{Secret: s.login})
	if err != nil {
		v.sessions.set(nil, unavailable("watching the token: %v", err))
		return nil
	}
	v.sessions.set(s, nil)
	v.metrics.loggedIn.Store(true)
	defer v.metrics.loggedIn.Store(false)
	v.warnOfExpiry(ctx, s)
	v.warnOfPolicy(ctx, s)

	ended := make(chan struct{})
	go func() { defer close(ended); watcher.Start() }()
	defer func() { watcher.Stop(); <-ended }()
	look := time.NewTicker(filesPause)
	defer look.Stop()
	idDue := time.NewTimer(0)
	defer idDue.Stop()
	reason, said := "renewal ended", ""
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			v.sessions.set(nil, unavailable("the node is stopping"))
			return nil
		case <-look.C:
			var err error
			if next, err = v.renewed(ctx, s); next != nil {
				reason, waiting = "the files of the AppRole have changed", false
			} else if err != nil && ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				v.log.Error("keeping the old session in vault: the new role id or secret id was rejected", "error", err)
			}
		case <-idDue.C:
			var wait time.Duration
			if next, wait = v.tendSecretID(ctx, s); next != nil {
				reason, waiting = "the secret id was renewed", false
			}
			idDue.Reset(wait)
		case <-s.dead:
			reason = "vault does not know the token any more"
			waiting = false
		case err := <-watcher.DoneCh():
			if err != nil {
				reason = "renewal failed"
			}
			v.sessions.drop(s)
			waiting = false
		case <-watcher.RenewCh():
		}
	}
	v.log.Info("logging in to vault again", "reason", reason)
	return next
}

// warnOfExpiry logs an error when the mount is set to delete versions by age.
func (v *Vault) warnOfExpiry(ctx context.Context, s *session) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	after, err := v.expiry(ctx, s)
	switch {
	case isDenied(err):
		v.log.Error("vault's mount may delete versions by age: the AppRole's policy does not let the node look", "path",
			v.cfg.Mount, "error", explain(err))
	case after != "" && after != "0s":
		v.log.Error("vault's mount deletes versions by age: secrets in use will vanish; set its delete_version_after to 0s",
			"path", v.cfg.Mount, "reason", after)
	} // the operations report whatever else is wrong
}

// expiry returns the mount's delete_version_after, "" without one.
func (v *Vault) expiry(ctx context.Context, s *session) (string, error) {
	config, err := s.client.Logical().ReadWithContext(ctx, v.cfg.Mount+"/config")
	if err != nil || config == nil {
		return "", err
	}
	after, _ := config.Data["delete_version_after"].(string)
	return after, nil
}

// warnOfPolicy logs what the AppRole's policy lacks, before it is needed.
func (v *Vault) warnOfPolicy(ctx context.Context, s *session) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	lacks, err := v.lacks(ctx, s)
	if err != nil {
		return // the operations report what is wrong
	}
	var errs []error
	for _, one := range lacks {
		errs = append(errs, one)
	}
	if len(errs) > 0 {
		v.log.Error("the AppRole's policy in vault is not deploy/vault/bivouac.hcl", "error", errors.Join(errs...))
	}
}

// end revokes the token. If that fails the token expires by itself.
func (v *Vault) end(s *session) {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), revokeLimit)
	defer cancel()
	_ = s.client.Auth().Token().RevokeSelfWithContext(ctx, "")
}
