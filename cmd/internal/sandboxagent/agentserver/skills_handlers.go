package agentserver

import (
	"net/http"
	"path/filepath"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/skills"
)

// skillsAnswer is the response of POST /api/skills.
type skillsAnswer struct {
	Skills []skills.Skill `json:"skills"`
	// Sources counts them by where they are from.
	Sources map[string]int `json:"sources"`
}

// handleSkills handles POST /api/skills: the project's and the user's skills. There are no public
// ones and none of organisations, because those come over the internet.
func (s *Server) handleSkills(w http.ResponseWriter, r *http.Request) {
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	user, project := o.BooleanOr("load_user", true), o.BooleanOr("load_project", true)
	o.BooleanOr("load_public", true)
	o.BooleanOr("load_org", true)
	dir := o.Text("project_dir", wire.MaxText)
	if wire.Refused(w, o) {
		return
	}
	options := skills.Options{}
	if project && dir != nil && filepath.IsAbs(*dir) {
		options.WorkingDir = filepath.Clean(*dir)
	}
	if user {
		options.Home = s.cfg.Home()
	}
	c := skills.Load(options)
	for _, f := range c.Failures() {
		s.logger.Warn("a skill was left out", "path", f.Path, "error", f.Err)
	}
	out := skillsAnswer{
		Skills:  c.Skills(),
		Sources: map[string]int{"public": 0, "org": 0, "user": len(c.User()), "project": len(c.Project())},
	}
	if out.Skills == nil {
		out.Skills = []skills.Skill{}
	}
	wire.WriteJSON(w, http.StatusOK, out)
}

// handleHooks handles POST /api/hooks: the hooks of a project and, if asked for, of the user.
func (s *Server) handleHooks(w http.ResponseWriter, r *http.Request) {
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return
	}
	var dirs []string
	dir := o.Text("project_dir", wire.MaxText)
	if o.BooleanOr("load_project", true) && dir != nil && filepath.IsAbs(*dir) {
		dirs = append(dirs, filepath.Clean(*dir))
	}
	if home := s.cfg.Home(); o.BooleanOr("load_user", false) && home != "" {
		dirs = append(dirs, home)
	}
	if wire.Refused(w, o) {
		return
	}
	var all []*hooks.Config
	for _, d := range dirs {
		c, err := hooks.Load(d)
		if err != nil {
			s.logger.Warn("hooks were left out", "path", d, "error", err)
			continue
		}
		all = append(all, c)
	}
	wire.WriteJSON(w, http.StatusOK, map[string]any{"hook_config": hooks.Merge(all...)})
}

// usableTools are the names of the tools that a conversation may ask for.
func usableTools() []string { return []string{"file_editor", "task_tracker", "terminal"} }

// handleTools handles GET /api/tools/.
func (s *Server) handleTools(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, usableTools())
}

// noVSCode is what a server without VS Code says.
const noVSCode = "VSCode is disabled: this agent server has none"

// handleVSCodeURL handles GET /api/vscode/url.
func (s *Server) handleVSCodeURL(w http.ResponseWriter, _ *http.Request) {
	wire.WriteDetail(w, http.StatusServiceUnavailable, noVSCode)
}

// handleVSCodeStatus handles GET /api/vscode/status.
func (s *Server) handleVSCodeStatus(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, map[string]any{"running": false, "enabled": false, "message": noVSCode})
}

// handleDesktopURL handles GET /api/desktop/url.
func (s *Server) handleDesktopURL(w http.ResponseWriter, _ *http.Request) {
	wire.WriteDetail(w, http.StatusServiceUnavailable, "Desktop is disabled: this agent server has none")
}

// handleSkillsSync handles POST /api/skills/sync: there are no public skills to fetch.
func (s *Server) handleSkillsSync(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK,
		map[string]string{
			"status":  "error",
			"message": "This server fetches no public skills: put skills into the repository",
		})
}
