BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0007');
CREATE TABLE calls (
	id VARCHAR(40) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	endpoint VARCHAR(60) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	idempotency_key VARCHAR(255), 
	owner VARCHAR(40) NOT NULL, 
	state VARCHAR(10) NOT NULL, 
	status INTEGER, 
	answer JSON, 
	kept BOOLEAN NOT NULL, 
	heard BOOLEAN NOT NULL, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	PRIMARY KEY (id), 
	CONSTRAINT calls_idempotency_key UNIQUE (key_id, endpoint, idempotency_key), 
	CONSTRAINT calls_state CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled')), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "calls" VALUES('img_b94604c995f349bc86655fbd7e10cd94','key_436e845a1b1647a28383','images.generations','b6e5027571854a7be89d434e00712f7792c895369a0372a68a02289332ea3e87',NULL,'5d92633385b2460b851ad7711bd8fccd','succeeded',200,'{"answer": {"created": 1795524734, "data": [{"url": "http://127.0.0.1:15472/cdn/b0ddefceee46f16db140c0d809d3dcb3.webp", "b64_json": null, "seed": 6467193363573571}], "background": "opaque", "output_format": "webp", "quality": "high", "size": "256x256", "usage": {"input_tokens": 3, "input_tokens_details": {"text_tokens": 3, "image_tokens": 0}, "output_tokens": 256, "output_tokens_details": {"image_tokens": 256, "text_tokens": 0}, "total_tokens": 259}, "parameters": {"seed": 6467193363573571, "model": "alpha-image-2-count", "checkpoint": "tiny", "steps": 4, "guidance": 4.0, "strength": null, "negative_prompt": "", "loras": {}}}, "files": ["b0ddefceee46f16db140c0d809d3dcb3.webp"], "response_format": "url"}',1,1,1.79474713471161866195e+09,1.79474713481140184397e+09);
INSERT INTO "calls" VALUES('img_df38519841e44c5cb3dc42316ac3aa10','key_401e2bb771824704a604','images.generations','5fc262c682c9cf026b42690315a75e1d8c9705bf55e5308c64288629dca6eb68','order-1','5d92633385b2460b851ad7711bd8fccd','succeeded',200,'{"answer": {"created": 1795524734, "data": [{"url": "http://127.0.0.1:15472/cdn/c1b77f42aa55506288d6922ed9ee1fbd.webp", "b64_json": null, "seed": 2527661066653233}, {"url": "http://127.0.0.1:15472/cdn/d5e00b19a787ab13ecbf770894dae601.webp", "b64_json": null, "seed": 2527661066653234}], "background": "opaque", "output_format": "webp", "quality": "high", "size": "256x256", "usage": {"input_tokens": 3, "input_tokens_details": {"text_tokens": 3, "image_tokens": 0}, "output_tokens": 512, "output_tokens_details": {"image_tokens": 512, "text_tokens": 0}, "total_tokens": 515}, "parameters": {"seed": 2527661066653233, "model": "alpha-image-2-count", "checkpoint": "tiny", "steps": 4, "guidance": 4.0, "strength": null, "negative_prompt": "", "loras": {}}}, "files": ["c1b77f42aa55506288d6922ed9ee1fbd.webp", "d5e00b19a787ab13ecbf770894dae601.webp"], "response_format": "url"}',1,1,1.79500633482252955437e+09,1.79500633490156054489e+09);
INSERT INTO "calls" VALUES('img_469fe397586345c2a046f5cc8f3448a6','key_401e2bb771824704a604','images.generations','8ff2e22d2d1996a811c24b5d6212c1e93466d577ba0c7a23aa7b533ee201ef1c',NULL,'5d92633385b2460b851ad7711bd8fccd','succeeded',200,'{"answer": {"created": 1795524734, "data": [{"url": "http://127.0.0.1:15472/cdn/8404b9908a8a33bb535909436a21a0da.webp", "b64_json": null, "seed": 7166864777305578}], "background": "opaque", "output_format": "webp", "quality": "high", "size": "256x256", "usage": {"input_tokens": 259, "input_tokens_details": {"text_tokens": 3, "image_tokens": 256}, "output_tokens": 256, "output_tokens_details": {"image_tokens": 256, "text_tokens": 0}, "total_tokens": 515}, "parameters": {"seed": 7166864777305578, "model": "alpha-image-2-count", "checkpoint": "tiny", "steps": 4, "guidance": 4.0, "strength": 0.6, "negative_prompt": "", "loras": {}}}, "files": ["8404b9908a8a33bb535909436a21a0da.webp"], "response_format": "url"}',1,1,1.79526553492860555644e+09,1.79526553497223544117e+09);
CREATE TABLE chat_usage (
	key_id VARCHAR(40) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	chats BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	PRIMARY KEY (key_id, model, day), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "chat_usage" VALUES('key_436e845a1b1647a28383','starter-chat','2026-11-15',2,48,20);
CREATE TABLE entries (
	id INTEGER NOT NULL, 
	call_id VARCHAR(40) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	amount BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (call_id), 
	FOREIGN KEY(call_id) REFERENCES holds (call_id), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "entries" VALUES(1,'img_b94604c995f349bc86655fbd7e10cd94','key_436e845a1b1647a28383','alpha-image-2-count',1000,1.79474713480846834179e+09);
INSERT INTO "entries" VALUES(2,'img_df38519841e44c5cb3dc42316ac3aa10','key_401e2bb771824704a604','alpha-image-2-count',1000,1.79500633489980840687e+09);
INSERT INTO "entries" VALUES(3,'img_469fe397586345c2a046f5cc8f3448a6','key_401e2bb771824704a604','alpha-image-2-count',1000,1.79526553497066187863e+09);
CREATE TABLE holds (
	call_id VARCHAR(40) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	endpoint VARCHAR(60) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	price BIGINT NOT NULL, 
	owner VARCHAR(40) NOT NULL, 
	lease_until FLOAT NOT NULL, 
	state VARCHAR(10) NOT NULL, 
	reason VARCHAR(60), 
	created_at FLOAT NOT NULL, 
	settled_at FLOAT, 
	PRIMARY KEY (call_id), 
	CONSTRAINT holds_state CHECK (state IN ('held', 'captured', 'void')), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "holds" VALUES('img_b94604c995f349bc86655fbd7e10cd94','key_436e845a1b1647a28383','images.generations','alpha-image-2-count',1000,'5d92633385b2460b851ad7711bd8fccd',1.79474719471082592003e+09,'captured',NULL,1.79474713471082592008e+09,1.79474713480846834179e+09);
INSERT INTO "holds" VALUES('img_df38519841e44c5cb3dc42316ac3aa10','key_401e2bb771824704a604','images.generations','alpha-image-2-count',1000,'5d92633385b2460b851ad7711bd8fccd',1.79500639481985688203e+09,'captured',NULL,1.79500633481985688208e+09,1.79500633489980840687e+09);
INSERT INTO "holds" VALUES('img_469fe397586345c2a046f5cc8f3448a6','key_401e2bb771824704a604','images.generations','alpha-image-2-count',1000,'5d92633385b2460b851ad7711bd8fccd',1.79526559492737817764e+09,'captured',NULL,1.7952655349273781777e+09,1.79526553497066187863e+09);
CREATE TABLE keys (
	id VARCHAR(40) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	tail VARCHAR(4) NOT NULL, 
	groups JSON NOT NULL, 
	budget BIGINT, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, max_running INTEGER, keepalive BOOLEAN DEFAULT 0 NOT NULL, per_minute INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (secret_hash)
);
INSERT INTO "keys" VALUES('key_436e845a1b1647a28383','dev','bf077506fb659d4c008635a1cbb7c1dfcea81aa15f5772732264295959cba38b','MXXY','["alpha-image-per-call", "chat"]',NULL,1.79474712907767939562e+09,NULL,NULL,NULL,0,NULL);
INSERT INTO "keys" VALUES('key_401e2bb771824704a604','web shop','8b352a1d5c02d6c52f2d51ac6dc3b633cf7e9209b8b1ee6bd970affdb389bccb','ak7c','["alpha-image-per-call"]',50000,1.79474713354653906825e+09,NULL,NULL,NULL,0,NULL);
INSERT INTO "keys" VALUES('key_a900cdd95efb445a8e42','old team','c2f3813792a17f04a60384cf7c10317db66ff4387754a14e77c976061785aaaf','9KQs','["alpha-image-per-call", "chat"]',NULL,1.79474713447989749903e+09,NULL,NULL,NULL,0,NULL);
CREATE TABLE refusals (
	id INTEGER NOT NULL, 
	call_id VARCHAR(60) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	endpoint VARCHAR(60) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	stage VARCHAR(10) NOT NULL, 
	policy VARCHAR(100) NOT NULL, 
	category VARCHAR(100) NOT NULL, 
	evidence VARCHAR(200) NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "refusals" VALUES(1,'img_c023125db7114a86aa0c7573281852c9','key_436e845a1b1647a28383','images.generations','alpha-image-2-count','input','no-forbidden','test','''forbidden''',1.7947471350468890667e+09);
CREATE TABLE response_files (
	name VARCHAR(60) NOT NULL, 
	response_id VARCHAR(60) NOT NULL, 
	PRIMARY KEY (name, response_id), 
	FOREIGN KEY(response_id) REFERENCES responses (id)
);
CREATE TABLE response_items (
	id INTEGER NOT NULL, 
	response_id VARCHAR(60) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	item_id VARCHAR(200) NOT NULL, 
	side VARCHAR(6) NOT NULL, 
	position INTEGER NOT NULL, 
	body JSON NOT NULL, 
	picture VARCHAR(60), 
	PRIMARY KEY (id), 
	FOREIGN KEY(response_id) REFERENCES responses (id), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "response_items" VALUES(1,'resp_8b0450b5480b42c19ec0c43f216c62c8','key_436e845a1b1647a28383','msg_326c8175ed834728af693f0e972df52d','input',0,'{"id": "msg_326c8175ed834728af693f0e972df52d", "type": "message", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}',NULL);
INSERT INTO "response_items" VALUES(2,'resp_8b0450b5480b42c19ec0c43f216c62c8','key_436e845a1b1647a28383','msg_b94f6bcad6cc4c038b9bc9ca861efd5c','output',1,'{"id": "msg_b94f6bcad6cc4c038b9bc9ca861efd5c", "type": "message", "status": "incomplete", "role": "assistant", "content": [{"type": "output_text", "text": "0\ufffd\ufffdx\ufffd\ufffdR,%\b^\ufffd\ufffd\">8", "annotations": [], "logprobs": []}]}',NULL);
CREATE TABLE responses (
	id VARCHAR(60) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	previous_id VARCHAR(60), 
	state VARCHAR(12) NOT NULL, 
	owner VARCHAR(40) NOT NULL, 
	lease_until FLOAT NOT NULL, 
	background BOOLEAN NOT NULL, 
	echo JSON NOT NULL, 
	ended JSON, 
	events JSON, 
	idempotency_key VARCHAR(255), 
	fingerprint VARCHAR(64), 
	created_at FLOAT NOT NULL, stored BOOLEAN DEFAULT 1 NOT NULL, heard BOOLEAN DEFAULT 1 NOT NULL, ended_at FLOAT, 
	PRIMARY KEY (id), 
	CONSTRAINT responses_idempotency_key UNIQUE (key_id, idempotency_key), 
	CONSTRAINT responses_state CHECK (state IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "responses" VALUES('resp_8b0450b5480b42c19ec0c43f216c62c8','key_436e845a1b1647a28383',NULL,'incomplete','5d92633385b2460b851ad7711bd8fccd',1.79474719502554750445e+09,0,'{"background": false, "frequency_penalty": 0.0, "instructions": null, "max_output_tokens": 16, "max_tool_calls": null, "metadata": {}, "model": "starter-chat", "parallel_tool_calls": true, "presence_penalty": 0.0, "previous_response_id": null, "prompt_cache_key": null, "prompt_cache_retention": null, "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "service_tier": "default", "store": true, "temperature": 1.0, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": null}','{"completed_at": null, "usage": {"input_tokens": 24, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 16, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 40}, "error": null, "incomplete_details": {"reason": "max_output_tokens"}}',NULL,NULL,'f2736af67abbbcf34f862097d083bfc52a161b49b16c9dcec32a592331f58ab2',1794747135.0,1,1,1.79474713504192590713e+09);
CREATE TABLE results (
	name VARCHAR(60) NOT NULL, 
	call_id VARCHAR(40) NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	position INTEGER NOT NULL, 
	media_type VARCHAR(40) NOT NULL, 
	width_px INTEGER NOT NULL, 
	height_px INTEGER NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, deleted_at FLOAT, 
	PRIMARY KEY (name), 
	FOREIGN KEY(call_id) REFERENCES holds (call_id), 
	FOREIGN KEY(key_id) REFERENCES keys (id)
);
INSERT INTO "results" VALUES('b0ddefceee46f16db140c0d809d3dcb3.webp','img_b94604c995f349bc86655fbd7e10cd94','key_436e845a1b1647a28383',0,'image/webp',256,256,406,'18a6e0619f2fe3339cb7cae8c7c25ac4816ece80ff6769149ad53a7818663792',1.79474713480846834179e+09,NULL);
INSERT INTO "results" VALUES('c1b77f42aa55506288d6922ed9ee1fbd.webp','img_df38519841e44c5cb3dc42316ac3aa10','key_401e2bb771824704a604',0,'image/webp',256,256,404,'614daf316e60ca33e97d3b9da1a4d77191a0a2e10fa19f9745e013ab71b959f6',1.79500633489980840687e+09,NULL);
INSERT INTO "results" VALUES('d5e00b19a787ab13ecbf770894dae601.webp','img_df38519841e44c5cb3dc42316ac3aa10','key_401e2bb771824704a604',1,'image/webp',256,256,408,'0f61d36ce42aaa3f195ed692d002b2b5145d5daa357b15a3eaabf5f89e88c495',1.79500633489980840687e+09,NULL);
INSERT INTO "results" VALUES('8404b9908a8a33bb535909436a21a0da.webp','img_469fe397586345c2a046f5cc8f3448a6','key_401e2bb771824704a604',0,'image/webp',256,256,426,'02941cdbd5d4a1c746bb7c49df3db5873dfc2705cd69f09622470bf5c7847db6',1.79526553497066187863e+09,NULL);
CREATE INDEX ix_holds_state ON holds (state);
CREATE INDEX ix_results_call_id ON results (call_id);
CREATE INDEX ix_calls_state ON calls (state);
CREATE INDEX ix_calls_created_at ON calls (created_at);
CREATE INDEX ix_calls_same ON calls (key_id, endpoint, fingerprint, created_at);
CREATE INDEX ix_holds_sums ON holds (key_id, state, price);
CREATE INDEX ix_entries_sums ON entries (key_id, amount);
CREATE INDEX ix_refusals_key_id ON refusals (key_id);
CREATE INDEX ix_responses_state ON responses (state);
CREATE INDEX ix_responses_created_at ON responses (created_at);
CREATE INDEX ix_responses_key_id ON responses (key_id);
CREATE INDEX ix_response_items_response_id ON response_items (response_id);
CREATE INDEX ix_response_items_item_id ON response_items (item_id);
CREATE INDEX ix_responses_fingerprint ON responses (fingerprint);
CREATE INDEX ix_response_files_response_id ON response_files (response_id);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'ledger entries are append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'ledger entries are append-only'); END;
COMMIT;
