package fsm

// CustomSecretPutBody stores a named secret of Command.UserID, in place of one of the same name
// (POST /api/v1/secrets). More than a user may have are CodeInvalid.
type CustomSecretPutBody struct {
	// Secret has no UserID.
	Secret CustomSecret `json:"secret"`
}

// CommandType implements Body.
func (*CustomSecretPutBody) CommandType() CommandType { return CustomSecretPut }

// check implements Body.
func (b *CustomSecretPutBody) check(r *rules) {
	r.customSecrets([]CustomSecret{b.Secret})
	r.check(b.Secret.UserID == "", "a secret that is stored names no user")
}

func (t *transaction) applyCustomSecretPut(b *CustomSecretPutBody) (Result, *Error) {
	old, next, err := t.customSecretToPut(b)
	if err != nil {
		return Result{}, err
	}
	put(t, tableCustomSecrets, old, next)
	return Result{}, nil
}

// customSecretToPut checks a secret against the state.
func (t *transaction) customSecretToPut(b *CustomSecretPutBody) (old, next *CustomSecret, err *Error) {
	user, c := t.cmd.UserID, b.Secret
	c.UserID = user
	if err := t.checkCustomSecretCount(user, []CustomSecret{c}); err != nil {
		return nil, nil, err
	}
	old = first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(user, c.Name))
	return old, &c, t.mayGrow(user, growthOf(&t.meta, old, &c))
}

// CustomSecretUpdateBody changes the name and the description of a secret of Command.UserID; its
// value stays (PUT /api/v1/secrets/{secret_id}). An unknown one is CodeNotFound, a name that another
// secret has CodeConflict.
type CustomSecretUpdateBody struct {
	Name        string `json:"name"`
	NewName     string `json:"new_name"`
	Description string `json:"description"`
}

// CommandType implements Body.
func (*CustomSecretUpdateBody) CommandType() CommandType { return CustomSecretUpdate }

// check implements Body.
func (b *CustomSecretUpdateBody) check(r *rules) {
	r.lookedUp("name", b.Name)
	r.name("a custom secret's name", b.NewName, MaxName)
	r.text("a custom secret's description", b.Description, MaxLine)
}

func (t *transaction) applyCustomSecretUpdate(b *CustomSecretUpdateBody) (Result, *Error) {
	user := t.cmd.UserID
	old := first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(user, b.Name))
	if old == nil {
		return Result{}, errNoCustomSecret()
	}
	c := *old
	c.Name, c.Description = b.NewName, b.Description
	if b.NewName != b.Name && first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(user, c.Name)) != nil {
		return Result{}, Errorf(CodeConflict, "Secret %s already exists", clip(c.Name))
	}
	if err := t.mayGrow(user, growthOf(&t.meta, old, &c)); err != nil {
		return Result{}, err
	}
	if c.Name == old.Name {
		put(t, tableCustomSecrets, old, &c)
		return Result{}, nil
	}
	// The new row first: a value that a row refers to is not one that was replaced.
	put(t, tableCustomSecrets, nil, &c)
	drop(t, tableCustomSecrets, old)
	return Result{}, nil
}

// CustomSecretDeleteBody removes a secret of Command.UserID (DELETE /api/v1/secrets/{secret_id}).
// An unknown one is CodeNotFound.
type CustomSecretDeleteBody struct {
	Name string `json:"name"`
}

// CommandType implements Body.
func (*CustomSecretDeleteBody) CommandType() CommandType { return CustomSecretDelete }

// check implements Body.
func (b *CustomSecretDeleteBody) check(r *rules) { r.lookedUp("name", b.Name) }

func (t *transaction) applyCustomSecretDelete(b *CustomSecretDeleteBody) (Result, *Error) {
	old := first[CustomSecret](t.txn, tableCustomSecrets, indexID, keyOf(t.cmd.UserID, b.Name))
	if old == nil {
		return Result{}, errNoCustomSecret()
	}
	drop(t, tableCustomSecrets, old)
	return Result{}, nil
}

func errNoCustomSecret() *Error { return Errorf(CodeNotFound, "Secret not found") }
